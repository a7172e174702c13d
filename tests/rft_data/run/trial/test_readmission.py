"""Groups that a run rejected and that operators of a trial keep: stored by the owner, or beside the run."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError, TokenError
from rft_data.core.filters import Compare
from rft_data.core.rows import Feedback
from rft_data.core.schema import ANNOTATIONS
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubClient, HubServer
from rft_data.placement.hub.access import make_token
from rft_data.run.trial.readmission import Tried, readmitted
from tests.rft_data.run.rejudge.explored import STRICT, explore

REWARDS = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [None, None], [0.5, 0.25]]
"""STRICT drops the second, third and fourth group."""
LENIENT = "- reward_range_filter: {}\n- grpo_advantage_mapper: {}\n"
OWN = "- reward_range_filter: {}\n- reward_variance_filter: {}\n- grpo_advantage_mapper: {}\n"


@pytest.fixture
def recipe(tmp_path: Path, stored_recipe: dict[str, object]) -> Path:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({**stored_recipe, "name": "run", "experience_ops": STRICT}))
    with Buffer(tmp_path / "buffer") as buffer:
        explore(buffer, REWARDS)
    return path


def asked(recipe: Path, text: str, *, beside: bool, where: str = "") -> Tried:
    return {
        "trial": {
            "location": str(recipe.parent / "buffer"),
            "recipe": str(recipe),
            "run_id": "run",
            "text": text,
            "where": where,
            "groups": 64,
        },
        "beside": beside,
    }


def books(folder: Path) -> tuple[list[dict], list[tuple], list[tuple]]:
    """Groups that were readmitted, their verdicts and their versions, without times."""
    with Buffer(folder / "buffer", read_only=True) as buffer:
        groups = buffer.read("groups", None, Compare("run_id", "ne", "run")).drop(["created_at"]).to_pylist()
        names = {row["run_id"] for row in groups}
        versions = [row for row in buffer.read("versions").to_pylist() if row["run_id"] in names]
        seqs = {seq for row in groups for seq in row["seqs"]}
        judged = buffer.read("annotations").to_pylist()
        own = [(row["seq"], row["pipeline_hash"], row["verdict"]) for row in judged if row["seq"] in seqs]
        return groups, sorted(set(own)), [(row["run_id"], row["version"]) for row in versions]


def at_hub(folder: Path, act: Callable[[HubServer], None]) -> None:
    with Buffer(folder / "buffer") as owner, HubServer(owner) as hub:
        act(hub)


@pytest.mark.slow
def test_beside_the_run_the_same_is_stored_as_by_the_owner(
    recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def beside(hub: HubServer) -> None:
        token = make_token(hub.token, HubRole.CURATOR, "page")
        with HubClient(hub.address, token) as client:
            found = readmitted(asked(recipe, LENIENT, beside=True), lambda act: act(client))
            assert (found["rejected"], found["admitted"], found["rows"], found["still_rejected"]) == (
                3,
                2,
                4,
                1,
            )
            again = readmitted(asked(recipe, LENIENT, beside=True), lambda act: act(client))
            assert (again["admitted"], again["already"]) == (0, 2)
            with pytest.raises(RecipeError, match="the run's own operators"):
                readmitted(asked(recipe, OWN, beside=True), lambda act: act(client))

    at_hub(recipe.parent, beside)
    here = books(recipe.parent)
    assert [row["group_id"] for row in here[0]] == ["run/0-00000001", "run/0-00000002"]
    other = tmp_path_factory.mktemp("owner") / "recipe.json"
    other.write_text(recipe.read_text())
    with Buffer(other.parent / "buffer") as owner:
        explore(owner, REWARDS)
        readmitted(asked(other, LENIENT, beside=False), lambda act: act(owner))
    there = books(other.parent)
    assert (there[0], there[2]) == (here[0], here[2])
    assert set(here[1]) <= set(there[1])


@pytest.mark.slow
def test_only_groups_of_the_trial_are_readmitted(recipe: Path) -> None:
    with Buffer(recipe.parent / "buffer") as owner:
        one = asked(recipe, LENIENT, beside=False, where="group_id = 'run/0-00000002'")
        assert readmitted(one, lambda act: act(owner))["admitted"] == 1
        assert [row["group_id"] for row in books(recipe.parent)[0]] == ["run/0-00000002"]
        alone = asked(recipe, LENIENT, beside=False)
        alone["trial"]["recipe"] = alone["trial"]["run_id"] = None
        with pytest.raises(RecipeError, match="a buffer alone has no run"):
            readmitted(alone, lambda act: act(owner))


@pytest.mark.slow
def test_a_hub_takes_no_group_that_no_run_rejected(recipe: Path) -> None:
    with Buffer(recipe.parent / "buffer", read_only=True) as buffer:
        rows = {row["ordinal"]: row for row in buffer.read("groups").drop(["created_at"]).to_pylist()}
        name = buffer.read("experiences", ["experience_id"], None, 1).column(0)[0].as_py()
    none = pa.Table.from_pylist([], ANNOTATIONS)

    def entry(ordinal: int, **other: object) -> dict[str, object]:
        return {**rows[ordinal], "run_id": "book", **other}

    def attack(hub: HubServer) -> None:
        token = make_token(hub.token, HubRole.CURATOR, "page")
        with HubClient(hub.address, token) as client:
            for book, group, why in (
                ("book", entry(0, seqs=[0]), "it is kept under 'run'"),
                ("book", entry(1, group_id="nothing"), "no run rejected it"),
                ("run", entry(1, run_id="run"), "a run explored under it"),
                ("book", entry(1, seqs=[0]), "row 0 belongs to none of the groups"),
            ):
                with pytest.raises(RowError, match=why):
                    client.readmit(book, [group], [], none)
            with pytest.raises(RowError, match="is not for run id 'book'"):
                client.readmit("book", [entry(1, seqs=[2])], [{"run_id": "run", "version": 9}], none)
            with pytest.raises(TokenError, match="'annotate' is not for the role 'curator'"):
                client.annotate(none)
            client.readmit("book", [entry(1, seqs=[2])], [], none)
            with pytest.raises(RowError, match="it is kept under 'book'"):
                client.readmit("other", [entry(1, seqs=[2], run_id="other")], [], none)
            assert client.add_feedback([Feedback(name, "ann", "retire_task", 1.0)]) == 1
        with HubClient(hub.address, make_token(hub.token, HubRole.FEEDBACK, "rater")) as rater:
            for key in ("retire_task", "edit", "quarantine"):
                with pytest.raises(TokenError, match=f"'{key}' is not for the role 'feedback'"):
                    rater.add_feedback([Feedback(name, "bob", key, 1.0)])
            with pytest.raises(TokenError, match="'readmit' is not for the role 'feedback'"):
                rater.readmit("book", [entry(2, seqs=[4])], [], none)

    at_hub(recipe.parent, attack)
