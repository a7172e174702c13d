"""Stop strings and `min_tokens`: what is stored is what was sampled, with its logprobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from explorers.engines.stopping import StopTexts
from rft_data.core.engine import Completion, Engine, Sampling
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from tests.explorers.conftest import _engine_class
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import load_tokenizer, publishable

PROMPT = "1 + 1 ="


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return build_tiny_model(folder, seed=5, hidden_size=64, num_heads=2, num_layers=2)


@pytest.fixture(scope="module", params=["transformers", pytest.param("vllm", marks=pytest.mark.slow)])
def engine(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    weights = tmp_path_factory.mktemp("v1")
    publishable(model, weights)
    write_manifest(weights, {"run_id": "run", "version": 1, "step": 0})
    engine = _engine_class(request.param)(model, seed=0, max_model_len=128, options={})
    engine.load_weights(WeightRef("run", 1, 0, str(weights)))
    yield engine
    engine.close()


def sampled(engine: Engine, ids: list[int], n: int, **how: Any) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(ids, Sampling(**how)) for _ in range(n)))

    return asyncio.run(all_of_them())


@torch.no_grad()
def logprobs(model: Path, ids: list[int], end: int, start: int, held: int) -> list[float]:
    """The reference's logprobs of ids[start:], the first `held` of the distribution without the end token."""
    logits = AutoModelForCausalLM.from_pretrained(model)(input_ids=torch.tensor([ids])).logits[0].double()
    logits[start - 1 : start - 1 + held, end] = -torch.inf
    table = logits.log_softmax(-1)
    return [float(table[place - 1, ids[place]]) for place in range(start, len(ids))]


@pytest.mark.slow
def test_completion_ends_with_the_token_that_completes_a_stop_string(engine: Engine, model: Path) -> None:
    tokenizer = load_tokenizer(model)
    prompt, free, text = next(
        (ids, one, tokenizer.decode([token]))
        for ids in ([*tokenizer(PROMPT, add_special_tokens=False)["input_ids"], n] for n in range(4, 200))
        for one in sampled(engine, ids, 1, max_tokens=12, temperature=0.0)
        for token in one.token_ids[1:6]
        if tokenizer.decode([token]).isascii() and token != tokenizer.eos_token_id
    )
    (found,) = sampled(engine, prompt, 1, max_tokens=12, temperature=0.0, stop=("never said", text))
    n = len(found.token_ids)
    assert (found.finish_reason, 0 < n <= 6) == ("stop", True)
    assert list(found.token_ids) == list(free.token_ids[:n])
    assert tokenizer.decode(found.token_ids).endswith(text)
    ids = [*prompt, *found.token_ids]
    assert list(found.logprobs) == pytest.approx(
        logprobs(model, ids, tokenizer.eos_token_id, len(prompt), 0), abs=1e-4
    )
    assert list(found.version_spans) == [(1, 0, n)]
    (later,) = sampled(engine, prompt, 1, max_tokens=12, temperature=0.0, stop=(text,), min_tokens=n)
    assert len(later.token_ids) > n


@pytest.mark.slow
def test_min_tokens_samples_without_end_tokens_and_stores_those_logprobs(engine: Engine, model: Path) -> None:
    tokenizer = load_tokenizer(model)
    end = tokenizer.eos_token_id
    prompt = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    held = sampled(engine, prompt, 150, max_tokens=6, min_tokens=4)
    assert all(end not in one.token_ids[:4] and len(one.token_ids) > 4 for one in held)
    for one in held[:3]:
        ids = [*prompt, *one.token_ids]
        assert list(one.logprobs) == pytest.approx(logprobs(model, ids, end, len(prompt), 4), abs=1e-4)


def test_stop_text_counts_only_when_the_newest_token_completes_it() -> None:
    stop = StopTexts(lambda ids: "".join(map(chr, ids)), ["ab", "x"])
    assert stop.completed([97, 98])
    assert not stop.completed([97, 98, 99])
    assert stop.completed([97, 98, 99, 120])
    assert not stop.completed([97])
