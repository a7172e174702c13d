"""Conversations on several scripted engines: where turns go, when they move, and that pins end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from explorers.engines.conversation import conversation, present
from explorers.engines.make import ENGINES, make_engine
from explorers.engines.routing import RoutedEngine
from explorers.limits import Limits
from explorers.meter import Meter, MeteredEngine
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Sampling
from rft_data.core.errors import EngineError, ParityError, RecipeError
from rft_data.core.rows import WeightRef
from rft_data.core.words import RowSource
from rft_data.core.workflow import RolloutContext
from rft_data.recipe import sections
from tests.explorers.toys import ScriptedEngine, task
from tests.waiting import came, turns

GREEDY = Sampling(8, 0.0)


class Scripted(ScriptedEngine):
    """Takes an engine's arguments, counts its requests, and refuses weights where it is told to."""

    def __init__(self, model: Path, *, seed: int, options: dict, **_: Any) -> None:
        super().__init__(model)
        self.seed, self.refuses, self.asked = seed, options.get("refuses"), 0
        if options.get("broken"):
            raise EngineError("it does not start")
        STARTED.append(self)

    async def generate(self, *args: Any) -> Any:
        self.asked += 1
        return await super().generate(*args)

    def load_weights(self, ref: WeightRef) -> float:
        if ref.version == self.refuses:
            raise ParityError("other logprobs")
        return super().load_weights(ref)


STARTED: list[Scripted] = []
ONE = {"use": f"{__name__}:Scripted"}


def routed(*engines: dict, **options: Any) -> Any:
    STARTED.clear()
    settings = {
        "use": "routed",
        "seed": 3,
        "max_model_len": 64,
        "options": {"engines": list(engines), **options},
    }
    return make_engine(settings, "model")


@pytest.fixture
def two() -> Any:
    engine = routed(ONE, ONE, repin_above=1)
    engine.load_weights(WeightRef("run", 4, 0, ""))
    return engine


@pytest.mark.slow
def test_turns_of_a_conversation_stay_and_new_ones_go_to_the_emptiest(two: RoutedEngine) -> None:
    async def rollout(turns: int, gate: asyncio.Event) -> int:
        with conversation():
            for _ in range(turns):
                await two.generate([1], GREEDY)
            await gate.wait()
            await two.generate([1], GREEDY)
            return present() is not None

    async def play() -> None:
        gate = asyncio.Event()
        running = [asyncio.create_task(rollout(2, gate)) for _ in range(6)]
        await turns()
        assert two.load == (3, 3)
        assert [one.asked for one in STARTED] == [6, 6]
        gate.set()
        await asyncio.gather(*running)

    asyncio.run(play())
    assert [one.asked for one in STARTED] == [9, 9]
    assert (two.load, two.repinned) == ((0, 0), 0)


def test_a_conversation_moves_when_its_engine_has_too_many_more_than_the_emptiest(two: RoutedEngine) -> None:
    async def rollout(gate: asyncio.Event, end: asyncio.Event) -> None:
        with conversation():
            await two.generate([1], GREEDY)
            await gate.wait()
            await two.generate([1], GREEDY)
            await end.wait()

    async def play() -> None:
        stay, leave, end = asyncio.Event(), asyncio.Event(), asyncio.Event()
        gates = [(leave, leave) if n % 2 else (stay, end) for n in range(6)]
        running = [asyncio.create_task(rollout(*gate)) for gate in gates]
        await turns()
        leave.set()
        await asyncio.gather(*running[1::2])
        assert two.load == (3, 0)
        stay.set()
        await turns()
        assert two.load == (2, 1)
        end.set()
        await asyncio.gather(*running)

    asyncio.run(play())
    assert (two.load, two.repinned) == ((0, 0), 1)


class Asks:
    """Asks once, then ends as its task says."""

    async def run(self, task: Any, engine: Any, ctx: Any) -> list:
        await engine.generate([1], ctx.sampling)
        if task.metadata["script"] == ["hang"]:
            await engine.generate([ScriptedEngine.HANG], ctx.sampling)
        raise ZeroDivisionError


@pytest.mark.slow
def test_pins_end_with_their_rollouts_when_these_fail_hang_or_are_cancelled(two: RoutedEngine) -> None:
    meter = Meter()
    rollouts = Rollouts(MeteredEngine(two, meter), Asks(), Limits(rollout_deadline_s=0.3), meter)
    ctx = RolloutContext("run", "g", 0, 0, "e", RowSource.ROLLOUT, GREEDY)

    async def play() -> None:
        running = [asyncio.create_task(rollouts.play(task(act), ctx)) for act in ("fail", "hang", "hang")]
        await came(lambda: running[0].done())
        assert sum(two.load) == 2
        running[2].cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(play())
    assert (two.load, two._pins) == ((0, 0), {})


def test_a_request_outside_of_a_conversation_goes_to_the_emptiest(two: RoutedEngine) -> None:
    async def play() -> None:
        await asyncio.gather(*(two.generate([1], GREEDY) for _ in range(4)))

    asyncio.run(play())
    assert [one.asked for one in STARTED] == [2, 2]
    assert two.load == (0, 0)


def test_weights_go_to_all_and_the_lowest_version_counts(two: RoutedEngine) -> None:
    assert [one.version for one in STARTED] == [4, 4]
    asyncio.run(two.swap_weights(WeightRef("run", 5, 1, "")))
    assert [one.version for one in STARTED] == [5, 5]
    STARTED[1].refuses = 6
    with pytest.raises(ParityError, match="other logprobs"):
        asyncio.run(two.swap_weights(WeightRef("run", 6, 2, "")))
    assert two.version == 5
    assert len({one.seed for one in STARTED}) == 2


def test_engines_that_were_started_are_closed_when_another_does_not_start() -> None:
    with pytest.raises(EngineError, match="it does not start"):
        routed(ONE, {**ONE, "options": {"broken": True}})
    assert [one.closed for one in STARTED] == [True]


@pytest.mark.slow
def test_two_real_engines_sample_from_the_weights_that_both_were_given(tied: Any) -> None:
    engines = [{"use": "transformers"}, {"use": "transformers", "options": {"max_num_seqs": 2}}]
    engine = RoutedEngine(tied.base, seed=0, max_model_len=64, options={"engines": engines})
    engine.load_weights(tied.ref("b"))

    async def play() -> list[Any]:
        return await asyncio.gather(*(engine.generate([5, 6, 7], Sampling(6)) for _ in range(6)))

    for done in asyncio.run(play()):
        ids = [5, 6, 7, *done.token_ids]
        table = tied.logprobs("b", ids)
        wanted = [float(table[2 + n, token]) for n, token in enumerate(done.token_ids)]
        assert list(done.logprobs) == pytest.approx(wanted, abs=1e-4)
    engine.close()


def test_a_recipe_may_name_the_engines_that_can_be_made() -> None:
    assert set(sections.ENGINES) == set(ENGINES)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "wanted a list of engines"),
        ({"engines": [{"use": "vlm"}]}, "engine 'vlm' is not known; did you mean 'vllm'"),
        ({"engines": [{"use": "transformers", "options": {"devise": "cpu"}}]}, "has no option 'devise'"),
        (
            {"engines": [{"use": "vllm", "options": {"trust_remote_code": True}}]},
            "'trust_remote_code' would run code from model repositories",
        ),
    ],
)
def test_a_recipe_with_wrong_engines_is_refused_when_it_is_read(options: dict, match: str) -> None:
    with pytest.raises((RecipeError, ValidationError), match=match):
        sections.EngineSection(use="routed", options=options)
    sections.EngineSection(use="routed", options={"engines": [{"use": "transformers"}]})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "engines is None; wanted a list of engines"),
        ({"engines": []}, "wanted a list of engines"),
        ({"engines": [{"options": {}}]}, "wanted a list of engines"),
        ({"engines": [{**ONE, "seed": 3}]}, "each with 'use' and perhaps 'options'"),
        ({"engines": [ONE], "repin_above": 0}, "repin_above is 0; wanted a whole number"),
        ({"engines": [ONE], "repin": 2}, "options.repin is not an option of the engine 'routed'"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict, match: str) -> None:
    with pytest.raises(RecipeError, match=match):
        RoutedEngine(Path(), seed=0, max_model_len=64, options=options)
