"""What holds for a role in every placement."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_data.core.errors import (
    DiskFullError,
    EngineError,
    RecipeError,
    RftError,
    RoleDiedError,
    StalledError,
    UnknownComponentError,
)
from rft_data.core.roles import Placement, Role
from rft_data.core.rows import StepReport, Task
from rft_data.placement import PLACEMENTS, Patience, Surroundings, make_placement
from tests.rft_data.placement.conftest import spec


@pytest.fixture(scope="module", params=["inline", "local", pytest.param("ray", marks=pytest.mark.slow)])
def placement(request: pytest.FixtureRequest) -> Iterator[Placement]:
    if request.param == "ray":
        request.getfixturevalue("cluster")
    made = make_placement(request.param, Surroundings("run-1", patience=Patience(start_s=60, close_s=20)))
    yield made
    made.close()
    made.close()


@pytest.fixture(scope="module")
def toy(placement: Placement) -> Role:
    """One role for all tests that leave it as it was."""
    return placement.start(spec("toy-0"))


@pytest.mark.slow
def test_a_role_says_who_it_is(toy: Role) -> None:
    assert (toy.name, toy.incarnation) == ("toy-0", 0)


def test_arguments_and_results_arrive_as_their_types(toy: Role) -> None:
    assert toy.call("add", int, deadline_s=30, a=2).result() == 3
    tasks = [Task("sums", ({"role": "user", "content": f"é{n}\n"},), answer=str(n)) for n in range(1000)]
    assert toy.call("turn", list[Task], deadline_s=60, tasks=tasks).result() == tasks[::-1]
    report = toy.call("report", StepReport, deadline_s=30, step=7).result()
    assert isinstance(report, StepReport)
    assert dict(report.ess) == {7: 0.5}
    assert report.metrics["loss"] != report.metrics["loss"], "NaN did not arrive"
    assert toy.call("full", None, deadline_s=30).exception() is not None


@pytest.mark.parametrize(
    ("method", "kind", "message"),
    [
        ("full", DiskFullError, "^the disk is full$"),
        ("own", EngineError, "^broken engine$"),
        ("zero", RftError, "role 'toy-0' failed in 'zero': ZeroDivisionError: division by zero"),
        ("ad", UnknownComponentError, "role 'toy-0' has no method 'ad'; did you mean 'add'?"),
        ("__init__", UnknownComponentError, "has no method '__init__'"),
        ("total", UnknownComponentError, "has no method 'total'"),
    ],
)
def test_an_error_arrives_as_its_class(toy: Role, method: str, kind: type[RftError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        toy.call(method, None, deadline_s=30).result()
    assert caught.value.exit_code == kind.exit_code


@pytest.mark.slow
def test_a_call_past_its_deadline_names_both_sides(toy: Role) -> None:
    waiting = toy.call("sleep", None, deadline_s=0.2, seconds=60.0)
    with pytest.raises(StalledError, match=r"the run waited 0.2 s for role 'toy-0' \(.*\) to answer 'sleep'"):
        waiting.result(timeout=30)
    assert toy.call("add", int, deadline_s=30, a=4).result() == 5


@pytest.mark.slow
def test_a_restart_makes_it_anew(placement: Placement) -> None:
    role = placement.start(spec("toy-1"))
    role.call("add", int, deadline_s=30, a=4).result()
    assert role.call("added", int, deadline_s=30).result() == 4
    role.restart().result()
    assert role.incarnation == 1
    assert role.call("added", int, deadline_s=30).result() == 0
    role.close()


@pytest.mark.slow
def test_a_closed_role_has_been_asked_to_close(placement: Placement, tmp_path: Path) -> None:
    role = placement.start(spec("toy-2", folder=str(tmp_path)))
    role.close()
    role.close()
    assert (tmp_path / "closed").exists()
    with pytest.raises(RoleDiedError, match="role 'toy-2'"):
        role.call("add", int, deadline_s=30, a=1).result()


@pytest.mark.slow
def test_what_a_factory_raises_is_raised_by_start(placement: Placement) -> None:
    with pytest.raises(RecipeError, match=r"^no such model$"):
        placement.start(spec("toy-3", "refuses"))
    with pytest.raises(RftError, match=r"role 'toy-3' failed in '\(start\)': KeyError: 'model'"):
        placement.start(spec("toy-3", "breaks"))


def test_a_factory_that_is_not_as_said_is_named() -> None:
    placement = make_placement("inline", Surroundings("run-1"))
    with pytest.raises(RftError, match="unexpected keyword argument 'folders'"):
        placement.start(spec("toy-3", folders="x"))
    with pytest.raises(UnknownComponentError, match="role factory 'toy:toi'"):
        placement.start(spec("toy-3", "toi"))


def test_a_factory_takes_json_values_only(placement: Placement) -> None:
    with pytest.raises(RftError, match=r"argument of '\(start\)' for role 'toy-4' cannot be written as JSON"):
        placement.start(spec("toy-4", folder=object()))


def test_a_placement_that_is_not_there_is_said_so() -> None:
    with pytest.raises(UnknownComponentError, match="placement 'locl' is not known; did you mean 'local'"):
        make_placement("locl", Surroundings("run-1"))
    assert set(PLACEMENTS) == {"inline", "local", "ray"}


@pytest.mark.slow
def test_a_placement_of_ones_own_is_found_by_import_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from rft_data.placement.inline import InlinePlacement\n\n"
        "def placed(given):\n    return InlinePlacement(given.run_id)\n"
    )
    made = make_placement(f"{tmp_path}/mine.py:placed", Surroundings("run-7"))
    assert type(made).__name__ == "InlinePlacement"
    assert made._buffer == "run-7"
