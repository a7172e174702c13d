"""Synchronous runs broken off again and again end with the weights and the books of one that was not.

Some of the steps go ahead with fewer groups, and most rounds are refilled. Every run is broken off at every
failpoint that it passes, in an order and at passes drawn as in `tests/rft_data/loop/test_broken_runs.py`:
every other time by SIGKILL, else by an error. `RFT_BREAKS=all` adds runs with processes of their own and
with vLLM, and breaks each off a second time, with kills for errors and errors for kills.
"""

from __future__ import annotations

import logging
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core import failpoints
from rft_data.core.errors import RftError
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.rft_data.loop.test_broken_runs import ALL, LONG, SEED
from tests.rft_data.run.killing import ROOT, Starts, starts
from tests.rft_data.run.test_online import check_books, grants, write_recipe

log = logging.getLogger(__name__)

BREAKS = {
    "stage.step": 12,
    "store.write": 12,
    "store.commit": 12,
    "store.committed": 12,
    "store.synced": 12,
    "append.ack": 4,
    "explore.started": 3,  # rows are stored, nobody has looked at them
    "judge.begin": 2,
    "judge.annotated": 2,  # operators have judged, the groups are not closed
    "judge.closed": 2,
    "lease.granted": 2,
    "step.begin": 2,
    "trainer.step": 2,
    "step.done": 2,  # the optimizer step is taken, its weights are nowhere
    "publish.written": 2,
    "publish.renamed": 2,
    "publish.recorded": 2,
    "checkpoint.written": 1,
    "checkpoint.sealed": 1,
    "settle.consume": 1,  # the checkpoint is complete, its consumption is not written down
    "settle.consumed": 1,
}
"""Failpoints, and the latest pass of each at which a start is broken off."""
ELSEWHERE = {
    "final.written": "tests/rft_data/run/test_adapter_run.py",
    "mirror.stored": "tests/rft_data/run/test_mirror.py",
    "mirror.listed": "tests/rft_data/run/test_mirror.py",
    "repair.step": "tests/rft_data/buffer/care",
    "care.put": "tests/rft_data/buffer/care",
    "compact.merge": "tests/rft_data/buffer/test_storage_faults.py",
    "compact.merged": "tests/rft_data/buffer/test_storage_faults.py",
    "compact.cleaned": "tests/rft_data/buffer/test_storage_faults.py",
}
"""Failpoints that such a run does not pass, and where they are tried."""
BEFORE_A_LEASE = (
    "append.ack",
    "explore.started",
    "judge.begin",
    "judge.annotated",
    "judge.closed",
    "lease.granted",
)
COMPLETING = ("checkpoint.written", "checkpoint.sealed", "settle.consume", "settle.consumed")
IN_ROLES = ("stage.step", "trainer.step")
"""Passed by the trainer, in the run's own process or another."""
UNTRIED = {"rank.order"}
"""Of a trainer with several ranks: no test arms it."""
STEPS = 6 if ALL else 4
ENGINES = (
    {"transformers": ["inline", "local"], "vllm": ["inline", "local"]}
    if ALL
    else {"transformers": ["inline"]}
)
PLACES = [(engine, place) for engine, places in ENGINES.items() for place in places]
TURNS = (0, 1) if ALL else (0,)

Break = tuple[str, int, str]
"""A failpoint, at which pass of it the run is broken off, and how: `kill` or `error`."""


def recipe(root: Path, engine: str, place: str) -> tuple[Path, list[str]]:
    """A run whose steps go ahead after 16 groups, also if fewer than eight of them may be trained."""
    root.mkdir()
    path = write_recipe(root, engine, steps=STEPS)
    changes = [
        "buffer.durability=power",
        "stages.0.trl.num_train_epochs=12",
        "stages.1.checkpoint_every=2",
        "stages.1.groups_per_step=8",
        "stages.1.max_explored=2",
        "stages.1.trl.learning_rate=1.0e-5",
        "evaluation.limit=4",
        "evaluation.every=3",
        "evaluation.samples=2",  # sampled, so they draw from the engine's random numbers
    ]
    return path, [*changes, *([] if place == "inline" else [f"placement.use={place}"])]


def trained(root: Path) -> list[list[tuple[str, ...]]]:
    """Per step, what it was trained on."""
    with Buffer(root / "run" / "buffer", read_only=True) as buffer:
        rows = {row["seq"]: row for row in buffer.read("experiences").to_pylist()}
        leases = sorted(grants(buffer), key=lambda lease: lease["step"])
    names = ("task_id", "member", "token_ids", "logprobs", "reward")
    return [[tuple(str(rows[seq][name]) for name in names) for seq in lease["seqs"]] for lease in leases]


def weights(root: Path) -> bytes:
    return (root / "run" / "checkpoints" / f"checkpoint-{STEPS}" / "model.safetensors").read_bytes()


def drawn(turn: int) -> list[Break]:
    """One break at every failpoint in a random order.

    First comes the supervised stage. So that a suite needs one run for all, in it next is what comes before a
    lease, which leased steps do not pass when they are trained again, and last what completes steps.
    """
    draw = random.Random(SEED * 2 + turn)  # noqa: S311 - no secret
    names = draw.sample(list(BREAKS), len(BREAKS))
    if not ALL:
        names.sort(key=lambda name: (name not in BEFORE_A_LEASE) + 2 * (name in COMPLETING))
        names[-len(COMPLETING) :] = COMPLETING
    names.sort(key=lambda name: name != "stage.step")
    actions = ("kill", "error") if turn == 0 else ("error", "kill")
    return [
        (name, draw.randint(1, BREAKS[name]) if ALL else 1, actions[at % 2]) for at, name in enumerate(names)
    ]


def broken_off(path: Path, changes: list[str], killer: Starts, at: Break, place: str) -> bool:
    """Start the run, or go on with it: whether it is broken off, and did not end as if nothing had been."""
    name, number, action = at
    in_another = place != "inline" and name in IN_ROLES
    if action == "kill":
        ended = killer.start(path, changes, name, number)
        # a run goes on without a trainer that was killed, until it was killed too often
        assert ended in (0, 1 if in_another else -signal.SIGKILL), at
        return ended != 0
    with pytest.MonkeyPatch.context() as patch, failpoints.armed(name, number):
        patch.setenv("RFT_FAILPOINT", f"{name}:{number}:error")  # for the processes of its roles
        try:
            run_recipe(load_recipe(path, changes))
        except (OSError, RftError) as err:
            if f"failpoint {name}" not in str(err):
                raise
            return True
    return False


def broken_runs(
    root: Path, killer: Starts, breaks: list[Break], where: tuple[str, str]
) -> Iterator[tuple[Path, list[Break]]]:
    """Runs, each broken off as often as it lasts, until every break was met; a folder and its breaks."""
    left = breaks
    while left:
        path, changes = recipe(root / str(len(left)), *where)
        met: list[Break] = []
        while len(met) < len(left) and broken_off(path, changes, killer, left[len(met)], where[1]):
            met.append(left[len(met)])
        assert met, f"a run that is new does not come to {left[0]}"
        run_recipe(load_recipe(path, changes))
        yield path.parent, met
        left = left[len(met) :]


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def straight(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, Path]:
    """An engine, a placement, and the folder of their run that nothing breaks off."""
    engine, place = request.param
    root = tmp_path_factory.mktemp("straight") / "run"
    path, changes = recipe(root, engine, place)
    run_recipe(load_recipe(path, changes))
    sizes = {len(rows) for rows in trained(root)}
    assert len(sizes) > 1, "every step is full"
    check_books(root, steps=STEPS)
    return engine, place, root


@pytest.fixture(scope="module")
def killer(straight: tuple[str, str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    with starts(straight[0], tmp_path_factory.mktemp("killer") / "log") as process:
        yield process


@LONG
@pytest.mark.heavy
@pytest.mark.parametrize("turn", TURNS)
def test_a_run_broken_off_at_every_failpoint_ends_with_the_weights_of_a_straight_one(
    tmp_path: Path, straight: tuple[str, str, Path], killer: Starts, turn: int
) -> None:
    engine, place, wanted = straight
    breaks = drawn(turn)
    assert {name for name, _, _ in breaks} == BREAKS.keys()
    assert {action for _, _, action in breaks} == {"kill", "error"}
    for root, met in broken_runs(tmp_path, killer, breaks, (engine, place)):
        log.info("%s %s: %d breaks: %s", engine, place, len(met), met)
        assert trained(root) == trained(wanted), f"RFT_BREAKS_SEED={SEED}: broken off at {met}"
        assert weights(root) == weights(wanted), f"RFT_BREAKS_SEED={SEED}: broken off at {met}"


def in_code() -> set[str]:
    """Every failpoint of the code."""
    files = [
        path for part in ("rft_data", "trainers", "explorers", "ops") for path in (ROOT / part).rglob("*.py")
    ]
    return {name for path in files for name in re.findall(r'failpoint\(\s*"([^"]+)"', path.read_text())}


@pytest.mark.heavy
def test_every_failpoint_of_the_code_is_broken_off_here_or_tried_elsewhere() -> None:
    assert sorted(in_code()) == sorted([*BREAKS, *ELSEWHERE, *UNTRIED])
    for name, where in ELSEWHERE.items():
        place = ROOT / where
        files = place.rglob("test_*.py") if place.is_dir() else [place]
        assert any(name in path.read_text() for path in files), f"{name} is not tried in {where}"
