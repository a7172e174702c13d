"""What is particular to vLLM over several processes: their start and end, copies of the model, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from explorers.engines.make import make_engine
from explorers.engines.parallel import Parallel, parallel_sizes, unfit_shape
from explorers.transports.group_sender import GroupSender
from explorers.transports.ray_store import RaySender
from rft_data.core.engine import Completion, Engine, Sampling
from rft_data.core.errors import EngineError, ParityError, RecipeError
from rft_data.core.rows import WeightRef
from tests.explorers.conftest import SERVED_HERE, Published
from tests.explorers.engines.held import hold
from tests.explorers.engines.test_adapter_versions import adapter_ref
from tests.processes import runs
from tests.rays import ray_for
from tests.template import FORK
from tests.waiting import came, wait_for

ROOT = Path(__file__).parents[3]
PYTEST = f"{FORK}import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
PROMPTS = [[5, 6, 7, 8 + i] for i in range(6)]


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.skipif(SERVED_HERE in os.environ, reason="this is the child")
def test_an_engine_over_several_processes_keeps_every_claim_of_one() -> None:
    """By hand with pipeline stages: the child's command with SERVED_HERE='{"pipeline_parallel_size": 2}'."""
    pytest.importorskip("vllm")
    command = [sys.executable, "-c", PYTEST, "-q", "-p", "no:cacheprovider", "-m", "served"]
    done = subprocess.run(
        [*command, "tests/explorers/engines"],
        cwd=ROOT,
        env={**os.environ, SERVED_HERE: json.dumps({"tensor_parallel_size": 2})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 50


def play(engine: Engine, sampling: Sampling, prompts: list[list[int]] = PROMPTS) -> list[Any]:
    async def all_prompts() -> list[Any]:
        calls = [engine.generate(prompt, sampling) for prompt in prompts]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(all_prompts())


@pytest.fixture
def copies(tied: Published) -> Iterator[Any]:
    """Two copies of the model, each on one device."""
    pytest.importorskip("vllm")
    from tests.explorers.engines.served import served_engine

    options = {"tensor_parallel_size": 1, "data_parallel_size": 2}
    before = psutil.Process().children(recursive=True)
    engine = served_engine(tied.base, seed=0, max_model_len=128, options=options)
    started = psutil.Process().children(recursive=True)
    engine.started = [one for one in started if one not in before]  # another engine may be under test here
    yield engine
    engine.close()


@pytest.mark.slow
@pytest.mark.served
def test_copies_are_proved_one_by_one_and_sample_differently_until_a_process_dies(
    copies: Any, tied: Published
) -> None:
    (refused,) = play(copies, Sampling(1), PROMPTS[:1])
    assert isinstance(refused, ParityError)
    assert copies.load_weights(tied.ref("b")) <= 1e-4
    answers = play(copies, Sampling(40, min_tokens=40), [PROMPTS[0]] * 2)
    assert answers[0].token_ids != answers[1].token_ids
    cores = [
        child for child in copies.started if "EngineCore" in " ".join(child.cmdline()) or child.children()
    ]
    os.kill(cores[0].pid, signal.SIGKILL)
    outcomes = play(copies, Sampling(100, min_tokens=100))
    failed = [outcome for outcome in outcomes if isinstance(outcome, EngineError)]
    assert failed  # the other copy may have answered its part before the death was noticed
    assert "make a new engine" in str(failed[0])
    assert all(isinstance(outcome, EngineError | Completion) for outcome in outcomes), outcomes
    with pytest.raises(EngineError, match="closed"):
        copies.load_weights(tied.ref("a"))
    copies.close()
    wait_for(lambda: not any(runs(one.pid) for one in copies.started))


@pytest.fixture
def pair(tied: Published) -> Iterator[Any]:
    """One copy of the model on two devices, with weights that were proved."""
    pytest.importorskip("vllm")
    from tests.explorers.engines.served import served_engine

    before = psutil.Process().children(recursive=True)
    engine = served_engine(tied.base, seed=0, max_model_len=128, options={}, swap="continue")
    engine.started = [one for one in psutil.Process().children(recursive=True) if one not in before]
    engine.load_weights(tied.ref("a"))
    yield engine
    engine.close()


async def asked(engine: Any) -> list[asyncio.Task[Completion]]:
    """Requests that vLLM has got, and that wait for their first token."""
    hold(engine, 0)
    calls = [asyncio.create_task(engine.generate(prompt, Sampling(20))) for prompt in PROMPTS]
    await came(lambda: sum(ask.added.is_set() for ask in engine._front._asks.values()) == len(PROMPTS))
    return calls


@pytest.mark.slow
@pytest.mark.served
def test_a_process_that_dies_in_the_middle_of_a_swap_fails_the_swap_and_all_that_wait(
    pair: Any, tied: Published
) -> None:
    [core] = [one for one in pair.started if one.children()]

    def kill() -> None:
        wait_for(lambda: pair._front._paused)
        os.kill(core.pid, signal.SIGKILL)

    async def swap() -> list[Any]:
        calls = await asked(pair)
        os.kill(core.pid, signal.SIGSTOP)  # so the swap cannot end before
        killer.start()
        return await asyncio.gather(pair.swap_weights(tied.ref("b")), *calls, return_exceptions=True)

    killer = Thread(target=kill)
    outcomes = asyncio.run(swap())
    killer.join()
    assert all(isinstance(one, EngineError) for one in outcomes), outcomes
    pair.rest.sleep()  # a trainer may have its devices
    pair.rest.wake()
    with pytest.raises(EngineError, match="closed"):
        pair.load_weights(tied.ref("a"))
    pair.close()
    wait_for(lambda: not any(runs(one.pid) for one in pair.started))


def processes_of(owner: psutil.Process) -> list[psutil.Process]:
    """The engine core and the workers that were started there."""
    return [
        one for one in owner.children(recursive=True) if "resource_tracker" not in " ".join(one.cmdline())
    ]


def _own(model: Path, ref: WeightRef, said: Any) -> None:
    """A process that owns an engine, as an explorer's does."""
    from tests.explorers.engines.served import served_engine

    engine = served_engine(model, seed=0, max_model_len=128, options={})
    difference = engine.load_weights(ref)
    (answer,) = play(engine, Sampling(4, min_tokens=4), PROMPTS[:1])
    said.send((difference, list(answer.version_spans)))
    signal.pause()


@pytest.mark.slow
@pytest.mark.served
def test_nothing_is_left_of_an_engine_whose_process_is_killed(tied: Published) -> None:
    pytest.importorskip("vllm")
    from tests.explorers.engines.served import FORK as CONTEXT

    ref = tied.ref("b")
    heard, said = CONTEXT.Pipe(duplex=False)
    owner = CONTEXT.Process(target=_own, args=(tied.base, ref, said))
    owner.start()
    said.close()
    difference, spans = heard.recv()
    assert (difference <= 1e-4, spans) == (True, [(ref.version, 0, 4)])
    started = processes_of(psutil.Process(owner.pid))
    assert len(started) == 3
    owner.kill()
    owner.join()
    wait_for(lambda: not any(runs(one.pid) for one in started))


@pytest.mark.heavy
@pytest.mark.served
@pytest.mark.parametrize(
    "devices", [{"tensor_parallel_size": 2}, {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}]
)
def test_weights_and_adapters_by_broadcast_reach_all_workers(
    tied: Published, devices: dict[str, int]
) -> None:
    pytest.importorskip("vllm")
    from tests.explorers.engines.served import served_engine

    sender = GroupSender("gloo", "127.0.0.1")
    way = {"use": "gloo", "host": sender.host, "port": sender.port, "explorer": "one"}
    engine = served_engine(tied.base, seed=0, max_model_len=128, options=devices, transport=way)
    for ref in (tied.ref("a"), tied.ref("b"), adapter_ref(tied)[0]):
        sender.offer(ref, ["one"])
        assert asyncio.run(engine.swap_weights(ref)) <= 1e-4
        (answer,) = play(engine, Sampling(4, min_tokens=4), PROMPTS[:1])
        assert list(answer.version_spans) == [(ref.version, 0, 4)]
    engine.close()
    sender.close()


class OnNode:
    """An actor that owns an engine, as an explorer on a node of a Ray cluster does."""

    def load(self, model: str, refs: list[WeightRef]) -> tuple[list[float], int]:
        """The differences on the probes, and how many processes beside it do the work."""
        settings = {"use": "vllm", "seed": 0, "max_model_len": 128, "swap": "drain"}
        spread = {"tensor_parallel_size": 2}
        way = {"use": "ray", "actor": "weights", "deadline_s": 60}
        engine: Any = make_engine(settings | {"options": spread, "transport": way}, model)
        differences = [asyncio.run(engine.swap_weights(ref)) for ref in refs]
        beside = processes_of(psutil.Process())
        engine.close()
        return differences, len(beside)


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_weights_from_rays_store_reach_the_workers_of_an_actor_in_a_placement_group(tied: Published) -> None:
    """It starts vLLM afresh, as a run does; the actor has room for itself alone."""
    pytest.importorskip("vllm")
    with ray_for(num_cpus=1, object_store_memory=128 << 20, log_to_driver=False) as ray:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        sender, refs = RaySender("weights"), [tied.ref("a"), adapter_ref(tied)[0]]
        room = PlacementGroupSchedulingStrategy(placement_group([{"CPU": 1}]))
        actor = ray.remote(OnNode).options(num_cpus=1, scheduling_strategy=room).remote()
        for ref in refs:
            sender.offer(ref)
        differences, processes = ray.get(actor.load.remote(str(tied.base), refs))
        sender.close()
    assert max(differences) <= 1e-4
    assert processes == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 4}, r"tensor_parallel_size is 4: the model has 2 attention heads"),
        ({"tensor_parallel_size": "2"}, r"tensor_parallel_size is '2'; give a whole number"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    tied: Published, options: dict[str, Any], message: str
) -> None:
    pytest.importorskip("vllm")
    settings = {"use": "vllm", "seed": 0, "max_model_len": 128, "options": options, "swap": "drain"}
    with pytest.raises(RecipeError, match=message):
        make_engine(settings | {"transport": {"use": "directory"}}, str(tied.base))


def test_sizes_of_options_are_counted_in_devices_and_processes() -> None:
    spread = parallel_sizes({"tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 2})
    assert (spread.devices, spread.processes, str(spread)) == (12, 15, "tensor 2 x pipeline 3 x data 2")
    assert not parallel_sizes({"dtype": "float32", "tensor_parallel_size": 1}).served
    assert (Parallel(tensor=2).processes, Parallel().processes) == (3, 0)


def test_only_a_model_with_experts_can_divide_them() -> None:
    divided = parallel_sizes({"tensor_parallel_size": 2, "enable_expert_parallel": True})
    assert list(unfit_shape({"num_attention_heads": 4, "num_local_experts": 8}, divided)) == []
    assert [name for name, _ in unfit_shape({"num_attention_heads": 4}, divided)] == [
        "enable_expert_parallel"
    ]
