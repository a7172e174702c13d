"""One suite for every engine: what `rft_data.core.engine.Engine` promises, against a plain HF forward."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from explorers.engines import transformers_engine, transformers_options
from explorers.meter import Meter, MeteredEngine
from rft_data.core.engine import Completion, Engine, Sampling
from rft_data.core.errors import (
    EngineError,
    IntegrityError,
    MissingFileError,
    ParityError,
    RecipeError,
    RowError,
)
from rft_data.core.files import write_manifest
from rft_data.core.model_folder import longest_sequence
from rft_data.core.rows import WeightRef
from rft_data.recipe.names import ENGINE_OPTIONS
from rft_data.weights.probe import PROBE_FILE
from tests.explorers.conftest import SERVED, STEPPED_BY_US

VOCABULARY, END = 96, 1
PROMPTS = [[2 + (7 * i + 3 * j) % (VOCABULARY - 2) for j in range(3 + i % 11)] for i in range(40)]


def sample(engine: Engine, prompts: Sequence[Sequence[int]], *sampling: Sampling) -> list[Completion]:
    """All prompts at once; the samplings are taken in turn."""

    async def play() -> list[Completion]:
        calls = [engine.generate(p, sampling[i % len(sampling)]) for i, p in enumerate(prompts)]
        return await asyncio.gather(*calls)

    return asyncio.run(play())


def largest_error(
    bench: Any, name: str, prompt: Sequence[int], completion: Completion, temperature: float = 1.0
) -> float:
    ids = [*prompt, *completion.token_ids]
    table = bench.logprobs(name, ids, temperature)[len(prompt) - 1 : -1]
    want = table.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
    return float((want - torch.tensor(completion.logprobs)).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_tempered_distribution(bench: Any, temperature: float) -> None:
    bench.engine.load_weights(bench.ref("a"))
    completions = sample(bench.engine, PROMPTS, Sampling(20, temperature))
    errors = [largest_error(bench, "a", p, c, temperature) for p, c in zip(PROMPTS, completions, strict=True)]
    assert max(errors) <= 1e-4


@pytest.mark.slow
def test_samples_follow_the_distribution(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    n = 3000
    completions = sample(bench.engine, [PROMPTS[3]] * n, Sampling(1, 0.7))
    seen = np.bincount([c.token_ids[0] for c in completions], minlength=VOCABULARY) / n
    want = bench.logprobs("a", PROMPTS[3], 0.7)[-1].exp().numpy()
    assert np.abs(seen - want).max() < 4 * np.sqrt(0.25 / n)
    assert len(np.unique([c.token_ids[0] for c in completions])) > 5


@pytest.mark.slow
def test_greedy_is_the_argmax_with_temperature_one_logprobs_also_beside_sampled_requests(
    bench: Any,
) -> None:
    bench.engine.load_weights(bench.ref("b"))
    completions = sample(bench.engine, PROMPTS, Sampling(12, 0.0), Sampling(12, 0.7))
    for prompt, completion in list(zip(PROMPTS, completions, strict=True))[::2]:
        ids = [*prompt, *completion.token_ids]
        best = bench.logprobs("b", ids).argmax(-1)[len(prompt) - 1 : -1]
        assert best.tolist() == list(completion.token_ids)
        assert largest_error(bench, "b", prompt, completion) <= 1e-4


@pytest.mark.slow
def test_load_weights_changes_what_is_served_and_proves_it(bench: Any) -> None:
    first = bench.ref("a")
    assert bench.engine.load_weights(first) <= 1e-4
    assert bench.engine.version == first.version
    before = sample(bench.engine, PROMPTS, Sampling(12, 0.0))
    second = bench.ref("b")
    assert bench.engine.load_weights(second) <= 1e-4
    after = sample(bench.engine, PROMPTS, Sampling(12, 0.0))
    assert bench.engine.version == second.version
    assert [c.token_ids for c in before] != [c.token_ids for c in after]
    for prompt, old, new in zip(PROMPTS, before, after, strict=True):
        assert largest_error(bench, "a", prompt, old) <= 1e-4
        assert largest_error(bench, "b", prompt, new) <= 1e-4


@pytest.mark.slow
def test_a_prompt_longer_than_a_cache_block_is_not_answered_from_older_weights(bench: Any) -> None:
    engine = bench.shared(max_model_len=256)
    prompt = [2 + i % (VOCABULARY - 2) for i in range(200)]
    for name in ("a", "b"):
        engine.load_weights(bench.ref(name))
        for _ in range(2):
            completion = sample(engine, [prompt], Sampling(8))[0]
            assert largest_error(bench, name, prompt, completion) <= 1e-4


@pytest.mark.slow
def test_spans_cover_every_token_with_the_served_version(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    for completion in sample(bench.engine, PROMPTS, Sampling(9)):
        assert list(completion.version_spans) == [(bench.engine.version, 0, len(completion.token_ids))]
        assert len(completion.logprobs) == len(completion.token_ids)


@pytest.mark.slow
def test_a_completion_ends_at_the_end_token_or_at_its_length(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    completions = sample(bench.engine, PROMPTS * 5, Sampling(30), Sampling(5))
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for i, completion in enumerate(completions):
        limit = (30, 5)[i % 2]
        assert END not in completion.token_ids[:-1]
        assert (completion.token_ids[-1] == END) == (completion.finish_reason == "stop")
        assert len(completion.token_ids) <= limit
        full = len(completion.token_ids) == limit and completion.token_ids[-1] != END
        assert (completion.finish_reason == "length") == full


@pytest.mark.slow
def test_many_requests_at_once_are_all_answered(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    prompts = [PROMPTS[i % len(PROMPTS)] for i in range(600)]
    completions = sample(bench.engine, prompts, Sampling(4))
    worst = max(largest_error(bench, "a", prompts[i], completions[i]) for i in range(0, 600, 50))
    assert worst <= 1e-4


def test_the_tokens_of_a_cancelled_request_are_those_that_were_sampled(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    meter = Meter()
    engine = MeteredEngine(bench.engine, meter)

    async def play() -> None:
        long = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(100, min_tokens=100)))
        await engine.generate(PROMPTS[1], Sampling(10, min_tokens=10))
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        assert long.cancelled()

    asyncio.run(play())
    # both advance together, until the shorter one's caller acts; of one that steps by itself either may begin
    least, most = (11, 110) if bench.steps_by_itself else (20, 22)
    assert least <= meter.take()["tokens"] <= most


@pytest.mark.slow
@STEPPED_BY_US
def test_the_same_seed_and_step_sample_the_same_whatever_the_process_drew(bench: Any) -> None:
    drawn = []
    for disturbance in (0, 1):
        engine = bench.fresh(seed=5)
        engine.load_weights(bench.ref("a"))
        torch.rand(disturbance)
        drawn.append([c.token_ids for c in sample(engine, PROMPTS, Sampling(8))])
        engine.load_weights(bench.ref("a", step=1))
        drawn.append([c.token_ids for c in sample(engine, PROMPTS, Sampling(8))])
        engine.close()
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1]


@pytest.mark.slow
@STEPPED_BY_US
def test_an_engine_leaves_the_process_as_it_was(bench: Any) -> None:
    threads, seeds = torch.set_num_threads, (random.getstate(), torch.get_rng_state())
    engine = bench.fresh()
    engine.load_weights(bench.ref("a"))
    sample(engine, PROMPTS, Sampling(4))
    engine.close()
    assert torch.set_num_threads is threads
    assert random.getstate() == seeds[0]
    assert torch.equal(torch.get_rng_state(), seeds[1])


@STEPPED_BY_US
def test_nothing_is_served_before_proof(bench: Any) -> None:
    engine = bench.fresh()
    with pytest.raises(ParityError, match="load_weights"):
        _ = engine.version
    with pytest.raises(ParityError, match="load_weights"):
        sample(engine, PROMPTS[:1], Sampling(1))
    engine.close()


@pytest.mark.slow
@STEPPED_BY_US
def test_closing_one_engine_leaves_the_other_serving(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    other = bench.fresh()
    other.load_weights(bench.ref("b"))
    other.close()
    other.close()
    with pytest.raises(EngineError, match="closed"):
        other.load_weights(bench.ref("b"))
    completion = sample(bench.engine, PROMPTS[:1], Sampling(8))[0]
    assert largest_error(bench, "a", PROMPTS[0], completion) <= 1e-4
    bench.engine.load_weights(bench.ref("b"))


def edit(ref: WeightRef, **changes: torch.Tensor | None) -> WeightRef:
    """Change or remove (None) tensors of a weight directory."""
    file = Path(ref.path) / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in changes.items():
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_file(tensors, file, metadata={"format": "pt"})
    return sealed(ref)


def sealed(ref: WeightRef) -> WeightRef:
    """Write the manifest again, so that only the engine can see what is wrong."""
    write_manifest(Path(ref.path), {"run_id": ref.run_id, "version": ref.version, "step": ref.step})
    return ref


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "missing: model.layers.1.mlp.up_proj.weight"),
        ("model.layers.7.mlp.up_proj.weight", torch.zeros(3, 3), "not of this model: model.layers.7"),
        ("model.norm.weight", torch.zeros(63), r"another shape: model.norm.weight \[63\] for \[64\]"),
    ],
)
def test_an_incomplete_directory_is_refused_and_the_old_weights_go_on(
    bench: Any, name: str, tensor: torch.Tensor | None, says: str
) -> None:
    good = bench.ref("a")
    bench.engine.load_weights(good)
    with pytest.raises(IntegrityError, match=says):
        bench.engine.load_weights(edit(bench.ref("b"), **{name: tensor}))
    assert bench.engine.version == good.version
    completion = sample(bench.engine, PROMPTS[:1], Sampling(8))[0]
    assert largest_error(bench, "a", PROMPTS[0], completion) <= 1e-4


def cut_short(ref: WeightRef) -> WeightRef:
    file = Path(ref.path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    return ref


def with_one_bit_changed(ref: WeightRef) -> WeightRef:
    file = Path(ref.path) / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    return ref


def without(ref: WeightRef, name: str) -> WeightRef:
    (Path(ref.path) / name).unlink()
    return ref


def with_another_file(ref: WeightRef) -> WeightRef:
    save_file({"model.norm.weight": torch.zeros(64)}, Path(ref.path) / "model-2.safetensors")
    return ref


def of_another_version(ref: WeightRef) -> WeightRef:
    return WeightRef(ref.run_id, ref.version + 10_000, ref.step, ref.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut_short, "does not match the digest"),
        (with_one_bit_changed, "does not match the digest"),
        (lambda ref: without(ref, "manifest.json"), "was not written completely"),
        (lambda ref: without(ref, PROBE_FILE), "lacks 'probe/probe.safetensors'"),
        (lambda ref: sealed(without(ref, PROBE_FILE)), "has no probe"),
        (lambda ref: sealed(without(ref, "model.safetensors")), "missing: "),
        (lambda ref: sealed(cut_short(ref)), "missing: "),
        (with_another_file, "do not hold the tensors its manifest lists"),
        (of_another_version, "wanted the weights of"),
    ],
    ids=lambda value: value.__name__ if callable(value) else None,
)
def test_a_damaged_directory_is_refused_and_the_old_weights_go_on(
    bench: Any, damage: Callable[[WeightRef], WeightRef], says: str
) -> None:
    good = bench.ref("a")
    bench.engine.load_weights(good)
    with pytest.raises(IntegrityError, match=says):
        bench.engine.load_weights(damage(bench.ref("b")))
    assert bench.engine.version == good.version
    completion = sample(bench.engine, PROMPTS[:1], Sampling(8))[0]
    assert largest_error(bench, "a", PROMPTS[0], completion) <= 1e-4


@pytest.mark.slow
def test_a_wrong_probe_stops_serving_until_a_good_load(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    with pytest.raises(ParityError, match="differ from the trainer's"):
        bench.engine.load_weights(bench.ref("a", probed="b"))
    with pytest.raises(ParityError, match="no proven weights"):
        sample(bench.engine, PROMPTS[:1], Sampling(1))
    bench.engine.load_weights(bench.ref("b"))
    completion = sample(bench.engine, PROMPTS[:1], Sampling(8))[0]
    assert largest_error(bench, "b", PROMPTS[0], completion) <= 1e-4


@pytest.mark.slow
def test_after_a_failed_proof_the_version_served_before_may_return(bench: Any) -> None:
    good = bench.ref("a")
    bench.engine.load_weights(good)
    with pytest.raises(ParityError):
        bench.engine.load_weights(bench.ref("b", probed="a"))
    assert bench.engine.load_weights(good) <= 1e-4
    assert bench.engine.version == good.version


def test_versions_only_grow(bench: Any) -> None:
    old, new = bench.ref("a"), bench.ref("b")
    proven = bench.engine.load_weights(new)
    assert bench.engine.load_weights(new) == proven
    with pytest.raises(EngineError, match="only grow"):
        bench.engine.load_weights(old)
    same = WeightRef("run", new.version, 0, old.path)
    with pytest.raises(EngineError, match="only grow"):
        bench.engine.load_weights(same)
    assert bench.engine.version == new.version


@pytest.mark.slow
def test_weights_do_not_change_under_a_request(bench: Any) -> None:
    good, other = bench.ref("a"), bench.ref("b")
    bench.engine.load_weights(good)

    async def swap_while_sampling() -> Completion:
        running = asyncio.create_task(bench.engine.generate(PROMPTS[0], Sampling(20)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="1 requests in flight"):
            bench.engine.load_weights(other)
        return await running

    completion = asyncio.run(swap_while_sampling())
    assert list(completion.version_spans) == [(good.version, 0, len(completion.token_ids))]
    bench.engine.load_weights(other)


@pytest.mark.slow
def test_a_cancelled_request_leaves_the_engine_ready(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))

    async def cancel_one() -> Completion:
        doomed = asyncio.create_task(bench.engine.generate(PROMPTS[0], Sampling(100)))
        kept = asyncio.create_task(bench.engine.generate(PROMPTS[1], Sampling(20)))
        await asyncio.sleep(0)
        doomed.cancel()
        return await kept

    assert largest_error(bench, "a", PROMPTS[1], asyncio.run(cancel_one())) <= 1e-4
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(bench.engine.generate(PROMPTS[0], Sampling(100)), 1e-4))
    bench.engine.load_weights(bench.ref("b"))


@pytest.mark.slow
@STEPPED_BY_US
def test_a_failure_inside_reaches_every_caller_and_ends_the_engine(bench: Any) -> None:
    engine = bench.fresh()
    engine.load_weights(bench.ref("a"))
    if hasattr(engine, "_llm"):
        engine._llm.apply_model(lambda model: delattr(model, "model"))
    else:
        del engine._model.model

    async def play() -> list[object]:
        calls = [engine.generate(p, Sampling(4)) for p in PROMPTS[:3]]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(play())
    assert len(outcomes) == 3
    for outcome in outcomes:
        assert isinstance(outcome, EngineError)
        assert "AttributeError" in str(outcome)
    with pytest.raises(ParityError):
        sample(engine, PROMPTS[:1], Sampling(1))
    with pytest.raises(EngineError, match="closed"):
        engine.load_weights(bench.ref("b"))


@pytest.mark.parametrize("bench", [pytest.param(("vllm", True), id="vllm"), SERVED], indirect=True)
@pytest.mark.slow
def test_an_engine_that_sleeps_serves_nothing_and_wakes_with_its_weights(bench: Any) -> None:
    engine, good = bench.engine, bench.ref("a")
    engine.load_weights(good)

    async def sleep_too_early() -> None:
        running = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(20)))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="cannot sleep with 1 requests"):
            engine.rest.sleep()
        await running

    asyncio.run(sleep_too_early())
    engine.rest.sleep()
    engine.rest.sleep()
    with pytest.raises(EngineError, match="the engine sleeps"):
        sample(engine, PROMPTS[:1], Sampling(1))
    with pytest.raises(EngineError, match="the engine sleeps"):
        engine.load_weights(bench.ref("b"))
    engine.rest.wake()
    engine.rest.wake()
    assert largest_error(bench, "a", PROMPTS[0], sample(engine, PROMPTS[:1], Sampling(8))[0]) <= 1e-4
    engine.load_weights(bench.ref("b"))
    assert largest_error(bench, "b", PROMPTS[0], sample(engine, PROMPTS[:1], Sampling(8))[0]) <= 1e-4


@pytest.mark.slow
def test_a_prompt_without_room_is_an_error_of_that_row(bench: Any) -> None:
    bench.engine.load_weights(bench.ref("a"))
    with pytest.raises(RowError, match=f"max_model_len {bench.room}"):
        sample(bench.engine, [[5] * bench.room], Sampling(1))
    with pytest.raises(RowError, match="0 tokens"):
        sample(bench.engine, [[]], Sampling(1))
    completions = sample(bench.engine, [[5] * (bench.room - 8)] * 20, Sampling(50))
    assert max(len(completion.token_ids) for completion in completions) == 8
    for completion in completions:
        assert (completion.finish_reason == "stop") == (completion.token_ids[-1] == END)
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 8


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [-1, 10**9])
def test_an_id_outside_the_vocabulary_costs_no_other_request(bench: Any, wrong: int) -> None:
    bench.engine.load_weights(bench.ref("a"))

    async def both() -> list[Any]:
        calls = [bench.engine.generate(prompt, Sampling(8)) for prompt in (PROMPTS[0], [5, wrong])]
        return await asyncio.gather(*calls, return_exceptions=True)

    good, refused = asyncio.run(both())
    assert isinstance(refused, RowError)
    assert f"token id {wrong}; this model's go from 0" in str(refused)
    assert largest_error(bench, "a", PROMPTS[0], good) <= 1e-4


@pytest.mark.slow
@STEPPED_BY_US
def test_an_unknown_option_is_refused_with_the_likely_one(bench: Any) -> None:
    with pytest.raises(RecipeError, match="did you mean 'dtype'"):
        bench.fresh(options={"dtyp": "float32"})
    engine = bench.fresh(options={"dtype": "bfloat16", "max_num_seqs": 4})
    assert 1e-3 < engine.load_weights(bench.ref("a")) <= 0.1
    assert len(sample(engine, PROMPTS, Sampling(4))) == len(PROMPTS)
    engine.close()


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neo", "gptj", "codegen", "opt", "biogpt"])
def test_a_length_beyond_a_models_table_of_positions_is_refused(kind: str, tmp_path: Path) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    most = longest_sequence(tmp_path)
    assert most is not None
    with pytest.raises(
        RecipeError, match=rf"max_model_len is {most + 1}, .* has only {most} positions; give"
    ):
        transformers_engine.TransformersEngine(tmp_path, seed=0, max_model_len=most + 1, options={})


def test_a_folder_without_safetensors_is_refused(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(bench.models["a"].config.to_dict()))
    with pytest.raises(MissingFileError, match="not a model folder"):
        bench.make(tmp_path, seed=0, max_model_len=128, options={})


@pytest.mark.slow
def test_recipes_know_the_options_of_the_transformers_engine() -> None:
    assert set(ENGINE_OPTIONS) == set(transformers_options.DEFAULTS)
