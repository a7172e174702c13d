"""What is particular to vLLM: its options, its worker and what it does to the process."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rft_data.core.engine import Sampling
from rft_data.core.errors import EngineError, RecipeError
from tests.waiting import came

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(tied: Any) -> Iterator[Any]:
    pytest.importorskip("vllm")
    from explorers.engines.vllm_engine import VllmEngine

    engine = VllmEngine(tied.base, seed=0, max_model_len=128, options={})
    yield engine
    engine.close()


def test_requests_of_an_engine_that_is_closed_fail(tied: Any) -> None:
    pytest.importorskip("vllm")
    from explorers.engines.vllm_engine import VllmEngine
    from explorers.engines.vllm_options import request_parameters

    engine = VllmEngine(tied.base, seed=0, max_model_len=128, options={}, own_thread=True)
    engine.load_weights(tied.ref("a"))
    goes_on = Event()

    async def close() -> list[Any]:
        begun = await engine.start([5, 6, 7], request_parameters(Sampling(100, min_tokens=100), ()))
        engine._calls.later(goes_on.wait)
        calls = [asyncio.create_task(engine.generate([5, 6, 7], Sampling(20))) for _ in range(3)]
        await came(lambda: engine.in_flight() == 4)  # no other than the first begins before `goes_on`
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await came(lambda: engine._calls._pool._shutdown)
        goes_on.set()
        await closing
        return await asyncio.wait_for(asyncio.gather(begun.future, *calls, return_exceptions=True), 60)

    for outcome in asyncio.run(close()):
        assert isinstance(outcome, EngineError), outcome
        assert "closed" in str(outcome)
    assert engine.in_flight() == 0


def test_logprobs_of_sampled_tokens_are_one_list_and_of_no_other_tokens(engine: Any, tied: Any) -> None:
    from explorers.engines.vllm_options import request_parameters
    from explorers.engines.vllm_request import sampled_logprobs

    engine.load_weights(tied.ref("a"))

    async def said() -> Any:
        flight = await engine.start([5, 6, 7], request_parameters(Sampling(4, min_tokens=4), ()))
        return (await flight.future).outputs[0]

    answer = asyncio.run(said())
    assert not isinstance(answer.logprobs, list)  # of a dict and an object for each token
    found = sampled_logprobs(answer.logprobs, answer.token_ids)
    assert found == [answer.logprobs[place][i].logprob for place, i in enumerate(answer.token_ids)]
    with pytest.raises(EngineError, match="not those that were sampled"):
        sampled_logprobs(answer.logprobs, [*answer.token_ids[:-1], 0])


def test_sizes_that_nobody_sets_are_those_of_vllms_own_entry_point(tied: Any) -> None:
    pytest.importorskip("vllm")
    from explorers.engines.vllm_engine import VllmEngine

    # on a GPU we set none, and those of a bare engine hold a tenth of the tokens
    engine = VllmEngine(tied.base, seed=0, max_model_len=128, options={"max_num_batched_tokens": None})
    assert engine.llm.vllm_config.scheduler_config.max_num_batched_tokens == 4096
    engine.close()


def test_a_load_that_breaks_half_way_is_mended_by_the_next(engine: Any, tied: Any) -> None:
    engine.load_weights(tied.ref("a"))
    broken = Path(tied.ref("b").path)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 64)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Exception, match=r"size|shape|narrow|copy"):
        engine.apply({"use": "directory", "path": str(broken), "n_tensors": len(tensors)}, 1)
    assert engine.load_weights(tied.ref("b")) <= 1e-4


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model", "is set by the engine itself"),
        ("logprobs_mode", "is set by the engine itself"),
        ("worker_extension_cls", "is set by the engine itself"),
        ("trust_remote_code", "would run code from model repositories"),
        ("worker_cls", "would replace the worker"),
    ],
)
def test_options_that_no_recipe_may_set_are_refused(tied: Any, name: str, reason: str) -> None:
    pytest.importorskip("vllm")
    from explorers.engines.vllm_engine import VllmEngine

    with pytest.raises(RecipeError, match=f"'{name}' {reason}"):
        VllmEngine(tied.base, seed=0, max_model_len=128, options={name: True})


@pytest.mark.heavy
@pytest.mark.usefixtures("own_collector")
def test_starting_vllm_leaves_environment_and_collector_alone(tied: Any) -> None:
    pytest.importorskip("vllm")
    from explorers.engines.vllm_engine import VllmEngine

    gc.unfreeze()
    before = dict(os.environ)
    engine = VllmEngine(tied.base, seed=0, max_model_len=128, options={})
    assert dict(os.environ) == before
    assert gc.get_freeze_count() == 0
    engine.close()


@pytest.mark.usefixtures("own_collector")
def test_what_the_host_froze_stays_frozen_while_an_engine_is_made(tied: Any) -> None:
    from explorers.engines.transformers_engine import TransformersEngine

    gc.freeze()
    frozen = gc.get_freeze_count()  # some are freed meanwhile, as nothing refers to them any more
    engine = TransformersEngine(tied.base, seed=0, max_model_len=128, options={})
    assert gc.get_freeze_count() > 0.9 * frozen
    engine.close()


def test_two_engines_in_two_threads_do_not_disturb_each_other(
    engine: Any, tied: Any, in_threads: Callable[..., list[Any]]
) -> None:
    from explorers.engines.vllm_engine import VllmEngine

    other = VllmEngine(tied.base, seed=1, max_model_len=128, options={})
    engine.load_weights(tied.ref("a"))
    other.load_weights(tied.ref("b"))
    prompts = [[2 + (5 * i + j) % 90 for j in range(4 + i % 7)] for i in range(20)]

    def play(one: Any) -> Any:
        async def all_prompts() -> Any:
            return await asyncio.gather(*(one.generate(p, Sampling(30)) for p in prompts))

        return asyncio.run(all_prompts())

    for name, completions in zip("ab", in_threads(play, [engine, other]), strict=True):
        for prompt, completion in zip(prompts, completions, strict=True):
            table = tied.logprobs(name, [*prompt, *completion.token_ids])[len(prompt) - 1 : -1]
            want = table.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            assert float((want - torch.tensor(completion.logprobs)).abs().max()) <= 1e-4
    other.close()
