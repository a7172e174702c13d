"""The explorer role as a conductor sees it: JSON arguments in, stored rows and row numbers out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explorers import role as role_module
from explorers.role import ExplorerRole, explorer_role
from rft_data.buffer import Buffer
from rft_data.core.codec import to_experiences
from rft_data.core.errors import (
    EngineError,
    ParityError,
    RecipeError,
    RftError,
    StalledError,
    UnknownComponentError,
)
from rft_data.core.files import write_manifest
from rft_data.core.groups import Assignment, Played, Ticket
from rft_data.core.roles import RoleSpec
from rft_data.core.rows import Task, WeightRef
from rft_data.core.words import ROLLOUT_SECONDS, HubRole
from rft_data.placement.hub import HubServer
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.local import LocalPlacement
from tests.docs.blocks import run_block
from tests.explorers.toys import SlowBuffer, task
from tests.processes import children_of, runs
from tests.waiting import came
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import publishable

TOYS = "tests.explorers.toys"
TASKS = [Task("sums", ({"role": "user", "content": f"{n} + {n} ="},), answer=str(2 * n)) for n in range(4)]
Make = Callable[..., ExplorerRole]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return build_tiny_model(folder, seed=3, hidden_size=64, num_layers=2)


@pytest.fixture(scope="module")
def buffer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buffer]:
    with Buffer(tmp_path_factory.mktemp("home") / "buffer") as opened:
        yield opened


@pytest.fixture
def make(model: Path) -> Iterator[Make]:
    """Roles with the scripted engine and workflow, version 4 loaded; closed at the end."""
    roles: list[ExplorerRole] = []

    def build(buffer: Any, *, load: bool = True, **changes: Any) -> ExplorerRole:
        settings: dict[str, Any] = {
            "engine": {"use": f"{TOYS}:ScriptedEngine"},
            "model": str(model),
            "run_id": "run",
            "attempt": 0,
            "explorer_id": "explorer-0",
            "group_size": 3,
            "sampling": {"max_tokens": 8, "temperature": 0.7},
            "reward": [{"use": "exact_answer"}],
            "workflow": {"use": f"{TOYS}:ScriptedWorkflow"},
            "limits": {"rollout_deadline_s": 30.0},
        }
        roles.append(explorer_role(buffer, plan={**settings, **changes}))
        if load:
            assert asyncio.run(roles[-1].load_weights(WeightRef("run", 4, 0, ""))) == 0.25
        return roles[-1]

    yield build
    for role in roles:
        role.close()


def assigned(*tasks: Task, first: int = 0) -> list[Assignment]:
    """One ticket per task."""
    return [Assignment(Ticket(f"run/g-{n}", n, 4), one) for n, one in enumerate(tasks, first)]


def explore(role: ExplorerRole, assignments: list[Assignment]) -> list[Played]:
    return asyncio.run(asyncio.wait_for(role.explore(assignments), 60))


@pytest.mark.slow
def test_the_small_engine_plays_whole_groups_and_its_rows_are_stored(
    make: Make, model: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "v7"
    weights.mkdir()
    publishable(model, weights)
    write_manifest(weights, {"run_id": "run", "version": 7, "step": 0})
    engine = {"use": "transformers", "seed": 0, "max_model_len": 128, "options": {}}
    with Buffer(tmp_path / "buffer") as buffer:
        role = make(buffer, load=False, engine=engine, workflow={"use": "single_turn", "args": {}})
        with pytest.raises(ParityError, match="no proven weights"):
            role.version()
        with pytest.raises(ParityError, match="no proven weights"):
            explore(role, assigned(TASKS[0]))
        assert len(buffer) == 0

        async def session() -> tuple[list[Played], list[int], list[int]]:
            assert await role.load_weights(WeightRef("run", 7, 0, str(weights))) < 1e-3
            one, two = await asyncio.gather(
                role.explore(assigned(*TASKS[:2])), role.explore(assigned(*TASKS[2:], first=2))
            )
            answers = await role.evaluate(TASKS, "run/eval-start-0")
            return one + two, answers, await role.evaluate(TASKS[:1], "run/eval-more-0", samples=2)

        played, answers, more = asyncio.run(session())
        assert role.version() == 7
        assert [one.ticket.group_id for one in played] == [f"run/g-{n}" for n in range(4)]
        assert len(buffer) == sum(len(one.seqs) for one in played) + len(answers) + 2 == 18
        for one, wanted in zip(played, TASKS, strict=True):
            rows = to_experiences(buffer.take(one.seqs))
            assert (one.outcome, one.rows, one.error, one.task) == ("arrived", 3, "", wanted.key)
            assert [(row.group_id, row.member) for row in rows] == [
                (one.ticket.group_id, n) for n in range(3)
            ]
            assert {(row.version_min, row.version_max, row.source) for row in rows} == {(7, 7, "rollout")}
        rows = to_experiences(buffer.take(answers))
        assert [row.task_id for row in rows] == [one.task_id for one in TASKS]
        assert {(row.source, row.sampling["temperature"]) for row in rows} == {("eval", 0.0)}
        sampled = to_experiences(buffer.take(more))
        assert [(row.member, row.sampling["temperature"]) for row in sampled] == [(0, 0.7), (1, 0.7)]
        numbers = asyncio.run(role.metrics())
        assert numbers["rollouts_arrived"] == 18
        trained = sum(len(r.token_ids) - r.prompt_length for r in to_experiences(buffer.read("experiences")))
        assert numbers["tokens"] == trained
        assert 0 < numbers["generating_s"] <= numbers["playing_s"] <= numbers["elapsed_s"]
        assert 0 <= numbers["bubble_ratio"] < 1
        role.close()
        with pytest.raises(RftError):
            explore(role, assigned(TASKS[0], first=9))


def test_a_group_is_stored_soon_after_it_is_complete_in_one_append(make: Make) -> None:
    buffer = SlowBuffer()
    role = make(buffer)

    async def watch() -> None:
        running = asyncio.create_task(role.explore(assigned(task("hang"), task("steps", name="u"))))
        while not buffer.calls:
            await asyncio.sleep(0.01)
        assert [row.group_id for row in buffer.calls[0]] == ["run/g-1"] * 6
        assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(asyncio.wait_for(watch(), 20))
    assert len(buffer.calls) == 1
    assert role._engine.aborted == 3


@pytest.mark.slow
def test_appends_do_not_hold_up_the_event_loop_nor_each_other(make: Make) -> None:
    buffer = SlowBuffer()
    buffer.goes_on.clear()
    role = make(buffer)

    async def watch() -> None:
        begun = []
        for group in range(2):
            begun.append(
                asyncio.create_task(role.explore(assigned(task("ok", name=str(group)), first=group)))
            )
            await came(lambda group=group: buffer.inside > group)
        assert not any(running.done() for running in begun), "the loop goes on while both wait"
        buffer.goes_on.set()
        await asyncio.gather(*begun)

    asyncio.run(watch())
    assert buffer.most_inside == 2


@pytest.mark.slow
def test_rows_that_the_door_refuses_are_missing_from_seqs_and_counted_in_rows(
    make: Make, buffer: Buffer
) -> None:
    before = buffer.counts()
    torn, whole = explore(make(buffer), assigned(task("ok", "nan", "ok"), task("ok", name="u")))
    assert (torn.outcome, torn.rows, len(torn.seqs)) == ("arrived", 3, 2)
    assert (whole.rows, len(whole.seqs)) == (3, 3)
    after = buffer.counts()
    assert after["experiences"] - before["experiences"] == 5
    assert after["quarantine"] - before["quarantine"] == 1


def test_a_group_without_a_row_stores_nothing(make: Make) -> None:
    buffer = SlowBuffer()
    (played,) = explore(make(buffer), assigned(task("fail")))
    assert (played.outcome, played.seqs, played.rows, buffer.calls) == ("failed", (), 0, [])
    assert played.error == "3 of 3: ZeroDivisionError: no such sum"


def test_an_evaluation_that_fails_has_its_row_too(make: Make, buffer: Buffer) -> None:
    seqs = asyncio.run(make(buffer).evaluate([task("fail"), task("ok", name="u")], "run/eval-x-0"))
    bad, good = to_experiences(buffer.take(seqs))
    assert bad.unscored_reason == "rollout failed: ZeroDivisionError: no such sum"
    assert (good.unscored_reason, good.reward) == (None, 0.0)


def test_several_answers_to_a_task_are_sampled_as_groups_are(make: Make, buffer: Buffer) -> None:
    asked = [task("ok"), task("ok", name="u")], "run/eval-x-0", 3
    seqs = asyncio.run(make(buffer).evaluate(*asked))
    assert asyncio.run(make(buffer).evaluate(*asked)) == seqs, "measured again they are the same rows"
    rows = to_experiences(buffer.take(seqs))
    assert not any(ROLLOUT_SECONDS in row.metadata for row in rows)
    assert [row.member for row in rows] == [0, 1, 2] * 2
    assert len({row.experience_id for row in rows}) == 6


def test_the_answers_to_one_task_are_stored_together(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(role_module, "_EVALUATED", 4)
    buffer = SlowBuffer()
    asked = [task("ok", name=name) for name in "abc"], "run/eval-x-0", 3
    assert len(asyncio.run(make(buffer).evaluate(*asked))) == 9
    stored = [[row.task_id for row in rows] for rows in buffer.calls]
    names = [one.task_id for one in asked[0]]
    assert stored == [[names[0]] * 3 + [names[1]] * 3, [names[2]] * 3]


@pytest.mark.slow
def test_what_the_buffer_raises_ends_the_call(make: Make) -> None:
    role = make(SlowBuffer(error=StalledError("the hub is away")))
    with pytest.raises(StalledError, match="the hub is away"):
        explore(role, assigned(task("ok"), task("hang", name="u")))
    assert role._engine.aborted == 3


def test_an_engine_that_breaks_down_ends_the_call(make: Make, buffer: Buffer) -> None:
    with pytest.raises(EngineError, match="the engine is gone"):
        explore(make(buffer), assigned(task("broken"), task("hang", name="u")))


@pytest.mark.slow
def test_a_reward_that_is_killed_costs_its_rollout_the_reward_and_nothing_else(
    make: Make, tmp_path: Path
) -> None:
    reward = [{"use": f"{TOYS}:SlowOnce", "args": {"note": str(tmp_path / "note")}}]
    limits = {"reward_deadline_s": 1.0, "reward_processes": 1, "retries": 0}
    with Buffer(tmp_path / "buffer") as buffer:
        role = make(buffer, reward=reward, limits=limits)
        (played,) = explore(role, assigned(task("ok")))
        rows = to_experiences(buffer.take(played.seqs))
    assert (played.outcome, len(rows)) == ("arrived", 3)
    reason = f"timeout: reward '{TOYS}:SlowOnce': took longer than 1 s and was stopped"
    assert sorted((row.reward is None, row.unscored_reason or "") for row in rows) == [
        (False, ""),
        (False, ""),
        (True, reason),
    ]
    numbers = asyncio.run(role.metrics())
    assert (numbers["rollouts_unscored"], numbers["reward_restarts"]) == (1, 1)
    assert numbers["rollouts_unscored/timeout"] == 1
    assert numbers["reward_p95_s"] >= 0.5
    assert asyncio.run(role.metrics())["rollouts_unscored"] == 0


@pytest.mark.slow
def test_a_custom_workflow_gets_its_arguments(make: Make) -> None:
    role = make(SlowBuffer(), workflow={"use": f"{TOYS}:ScriptedWorkflow", "args": {"pause_s": 0.3}})
    explore(role, assigned(task("ok")))
    numbers = asyncio.run(role.metrics())
    assert numbers["playing_s"] >= 0.3
    assert numbers["generating_s"] < numbers["playing_s"]
    assert numbers["idle_s"] <= numbers["elapsed_s"] - 0.3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"engine": {"use": "vlm"}}, UnknownComponentError, "engine 'vlm' is not known; did you mean 'vllm'"),
        ({"engine": {"use": f"{TOYS}:ScriptedEngine", "sede": 1}}, RecipeError, "does not take.*sede"),
        ({"workflow": {"use": "single_trun"}}, UnknownComponentError, "did you mean 'single_turn'"),
        (
            {"workflow": {"use": f"{TOYS}:ScriptedWorkflow", "args": {"puase": 1}}},
            RecipeError,
            "workflow .* cannot be built .*puase",
        ),
        ({"reward": [{"use": "exact_answr"}]}, UnknownComponentError, "did you mean 'exact_answer'"),
        ({"limits": {"retires": 1}}, RecipeError, "did you mean 'retries'"),
        ({"limits": {"min_members": 4}}, RecipeError, "at most explorer.group_size"),
    ],
)
def test_a_mistake_in_the_arguments_is_an_error_at_the_start(
    make: Make, changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(SlowBuffer(), **changes)


@pytest.mark.slow
def test_a_role_that_cannot_be_built_leaves_no_process_behind(make: Make) -> None:
    with (
        children_of("explorers.rewards.reward_child") as started,
        pytest.raises(RecipeError, match="does not take"),
    ):
        make(
            SlowBuffer(), reward=[{"use": f"{TOYS}:Act"}], engine={"use": f"{TOYS}:ScriptedEngine", "sede": 1}
        )
    assert started
    assert not [child for child in started if runs(child)]


@pytest.mark.slow
def test_the_role_says_the_same_from_a_process_of_its_own(model: Path, tmp_path: Path) -> None:
    plan = {
        "engine": {"use": f"{TOYS}:ScriptedEngine"},
        "model": str(model),
        "run_id": "run",
        "attempt": 0,
        "explorer_id": "explorer-0",
        "group_size": 2,
        "sampling": {"max_tokens": 8},
        "reward": [{"use": f"{TOYS}:Act"}],
        "workflow": {"use": f"{TOYS}:ScriptedWorkflow"},
        "limits": {"rollout_deadline_s": 60.0, "reward_processes": 1},
    }
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer) as hub:
        placement = LocalPlacement(HubAccess(hub.address, hub.token))
        try:
            role = placement.start(
                RoleSpec(
                    "explorer-0",
                    "explorers.role:explorer_role",
                    {"plan": plan},
                    hub_role=HubRole.EXPLORER,
                )
            )
            ref = WeightRef("run", 4, 0, "")
            with pytest.raises(ParityError, match="no proven weights"):
                role.call("version", int, deadline_s=60).result()
            assert role.call("load_weights", float, deadline_s=60, ref=ref).result() == 0.25
            calls = [
                role.call("explore", list[Played], deadline_s=60, assignments=assigned(one, first=n))
                for n, one in enumerate([task("ok"), task("fail", "ok", name="u")])
            ]
            ((whole,), (failed,)) = (call.result() for call in calls)
            assert (whole.outcome, len(whole.seqs), whole.task) == ("arrived", 2, task("ok").key)
            assert (failed.outcome, len(failed.seqs)) == ("failed", 1)
            answers = role.call("evaluate", list[int], deadline_s=60, tasks=[task("ok")], label="run/e-0")
            (answer,) = answers.result()
            assert sorted([*whole.seqs, *failed.seqs, answer]) == list(range(len(buffer)))
            numbers = role.call("metrics", dict[str, float], deadline_s=60).result()
            assert (numbers["rollouts_started"], numbers["rollouts_failed"]) == (5, 1)
            broken = role.call("explore", list[Played], deadline_s=60, assignments=assigned(task("broken")))
            with pytest.raises(EngineError, match="the engine is gone"):
                broken.result()
        finally:
            placement.close()


@pytest.mark.slow
def test_the_page_of_placement_starts_one(model: Path, tmp_path: Path) -> None:
    plan = {
        "engine": {"use": f"{TOYS}:ScriptedEngine"},
        "model": str(model),
        "run_id": "run-1",
        "attempt": 0,
        "explorer_id": "explorer-0",
        "group_size": 2,
        "sampling": {"max_tokens": 8},
        "reward": [{"use": "exact_answer"}],
        "workflow": {"use": f"{TOYS}:ScriptedWorkflow"},
        "limits": {},
    }
    names = {"plan": plan, "ref": WeightRef("run-1", 4, 0, ""), "assignments": assigned(task("ok"))}
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer) as hub:
        (played,) = run_block("placement.md", "make_placement(", hub=hub, **names)["played"]
        assert (played.outcome, list(played.seqs)) == ("arrived", [0, 1])


ACTS = ("ok", "fail", "nan", "steps", "exit")


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scripts=st.lists(st.lists(st.sampled_from(ACTS), min_size=1, max_size=3), min_size=1, max_size=5))
def test_rows_stored_are_the_rows_reported(make: Make, buffer: Buffer, scripts: list[list[str]]) -> None:
    before = buffer.counts()
    role = make(buffer, run_id=f"run-{before['experiences']}-{before['quarantine']}")
    played = explore(role, assigned(*(task(*script, name=str(n)) for n, script in enumerate(scripts))))
    role.close()
    after = buffer.counts()
    stored, refused = (after[name] - before[name] for name in ("experiences", "quarantine"))
    assert stored == sum(len(one.seqs) for one in played)
    assert refused == sum(one.rows - len(one.seqs) for one in played)
    seqs = [seq for one in played for seq in one.seqs]
    assert sorted(seqs) == list(range(before["experiences"], after["experiences"]))
    for script, one in zip(scripts, played, strict=True):
        acts = [script[min(n, len(script) - 1)] for n in range(3)]
        assert (one.outcome == "failed") == any(act in ("fail", "exit") for act in acts)
        assert one.rows - len(one.seqs) == acts.count("nan")
