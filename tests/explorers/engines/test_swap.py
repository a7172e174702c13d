"""Weights swapped under requests in flight, each token's logprob against the stored weights of its version.

`drain` and `recompute` against a plain forward, `continue` against a cache that the old weights began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from explorers.engines.swap import Segments, _give_up
from explorers.transports.arrival import Arrived
from rft_data.core.engine import Completion, Engine, Sampling
from rft_data.core.errors import EngineError, IntegrityError, ParityError, RecipeError
from rft_data.core.rows import WeightRef
from tests.explorers.conftest import ONE_MODEL
from tests.explorers.engines.held import advance, hold, let_go

VOCABULARY = 96
PROMPTS = [[2 + (7 * i + 3 * j) % (VOCABULARY - 2) for j in range(3 + i % 11)] for i in range(32)]
LONG = Sampling(48, 0.9)
MODES = ("drain", "continue", "recompute")
EXACT = 1e-4


def stored(ref: WeightRef) -> Any:
    """The published weights, in float64."""
    return AutoModelForCausalLM.from_pretrained(ref.path, dtype=torch.float64).eval()


@torch.no_grad()
def rescored(
    prompt: Sequence[int], completion: Completion, models: dict[int, Any], *, keep_cache: bool
) -> torch.Tensor:
    """Logprob of every sampled token under the weights of its span.

    With `keep_cache`, a span goes on from the keys and values of the spans before it.
    """
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    cache, fed, parts = DynamicCache(), 0, []
    for version, start, end in completion.version_spans:
        if not keep_cache:
            cache, fed = DynamicCache(), 0
        upto = len(prompt) + end - 1
        logits = models[version](input_ids=ids[:, fed:upto], past_key_values=cache, use_cache=True).logits
        table = (logits[0, -(end - start) :] / LONG.temperature).log_softmax(-1)
        chosen = ids[0, len(prompt) + start : len(prompt) + end]
        parts.append(table.gather(-1, chosen[:, None])[:, 0])
        fed = upto
    return torch.cat(parts)


def errors(
    completions: Sequence[Completion], refs: Sequence[WeightRef], *, keep_cache: bool, prompts: Any = PROMPTS
) -> list[float]:
    models = {ref.version: stored(ref) for ref in refs}
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        want = rescored(prompt, completion, models, keep_cache=keep_cache)
        found.append(float((want - torch.tensor(completion.logprobs)).abs().max()))
    return found


def check_spans(completion: Completion) -> None:
    """Spans cover the tokens without gap or overlap, and versions grow."""
    bounds = [0, *(end for _, _, end in completion.version_spans)]
    assert [start for _, start, _ in completion.version_spans] == bounds[:-1]
    assert bounds[-1] == len(completion.token_ids) == len(completion.logprobs)
    versions = [version for version, _, _ in completion.version_spans]
    assert versions == sorted(set(versions))


async def play_and_swap(
    engine: Engine,
    refs: Sequence[WeightRef],
    *,
    steps: int = 4,
    late: int = 0,
    sampling: Sampling = LONG,
) -> tuple[list[Completion], list[Completion], list[float]]:
    """All prompts at once, and a swap to each of `refs` after some steps; `late` calls come during each."""
    hold(engine, steps)
    running = [asyncio.create_task(engine.generate(prompt, sampling)) for prompt in PROMPTS]
    after, proven = [], []
    for ref in refs:
        await advance(engine, steps)
        swap = asyncio.create_task(engine.swap_weights(ref))
        await asyncio.sleep(0)
        after += [asyncio.create_task(engine.generate(prompt, sampling)) for prompt in PROMPTS[:late]]
        proven.append(await swap)
    let_go(engine)
    return await asyncio.gather(*running), await asyncio.gather(*after), proven


@pytest.mark.slow
@ONE_MODEL
@pytest.mark.parametrize("mode", MODES)
def test_every_token_has_the_logprob_of_its_version(bench: Any, mode: str) -> None:
    engine = bench.shared(swap=mode)
    refs = [bench.ref(name) for name in "abab"]
    engine.load_weights(refs[0])
    completions, _, proven = asyncio.run(play_and_swap(engine, refs[1:]))
    assert max(proven) <= EXACT
    assert engine.version == refs[-1].version
    for completion in completions:
        check_spans(completion)
    mixed = [c for c in completions if len(c.version_spans) > 1]
    if mode == "drain":
        assert not mixed
        assert {c.version_spans[0][0] for c in completions} == {refs[0].version}
    else:
        assert len(mixed) >= 16
        assert max(len(c.version_spans) for c in completions) >= 3
    assert max(errors(completions, refs, keep_cache=mode == "continue")) <= EXACT


@pytest.mark.slow
@ONE_MODEL
def test_a_stale_cache_is_kept_only_by_continue(bench: Any) -> None:
    """The two references differ by far more than the tolerance, so the test above can tell them apart."""
    engine = bench.shared(swap="continue")
    refs = [bench.ref("a"), bench.ref("b")]
    engine.load_weights(refs[0])
    completions, _, _ = asyncio.run(play_and_swap(engine, refs[1:], steps=12))
    assert max(errors(completions, refs, keep_cache=False)) > 0.1


@pytest.mark.slow
@ONE_MODEL
def test_calls_that_come_while_draining_wait_for_the_new_version(bench: Any) -> None:
    engine = bench.shared(swap="drain")
    refs = [bench.ref("a"), bench.ref("b")]
    engine.load_weights(refs[0])

    async def play() -> tuple[list[Completion], Completion]:
        running = [asyncio.create_task(engine.generate(prompt, LONG)) for prompt in PROMPTS[:4]]
        await asyncio.sleep(0)
        swap = asyncio.create_task(engine.swap_weights(refs[1]))
        while engine._swap._gate is None and not swap.done():  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        late = asyncio.create_task(engine.generate(PROMPTS[4], LONG))
        done = await asyncio.gather(*running)
        await swap
        return done, await late

    before, late = asyncio.run(play())
    assert {c.version_spans[0][0] for c in before} == {refs[0].version}
    assert [v for v, _, _ in late.version_spans] == [refs[1].version]
    assert max(errors([*before, late], refs, keep_cache=False, prompts=PROMPTS[:5])) <= EXACT


@pytest.mark.slow
@ONE_MODEL
@pytest.mark.parametrize("mode", ["continue", "recompute"])
def test_calls_that_come_during_swaps_are_answered_too(bench: Any, mode: str) -> None:
    engine = bench.shared(swap=mode, options={"max_num_seqs": 8})
    refs = [bench.ref(name) for name in "abab"]
    engine.load_weights(refs[0])
    completions, late, _ = asyncio.run(
        play_and_swap(engine, refs[1:], late=3, sampling=Sampling(30, LONG.temperature))
    )
    for completion in late:
        check_spans(completion)
    keep = mode == "continue"
    assert max(errors(completions, refs, keep_cache=keep)) <= EXACT
    assert max(errors(late, refs, keep_cache=keep, prompts=PROMPTS[:3] * 3)) <= EXACT


@pytest.mark.slow
@ONE_MODEL
@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_longer_than_a_cache_block_is_not_answered_from_older_weights(bench: Any, mode: str) -> None:
    engine = bench.shared(swap=mode, max_model_len=256)
    prompt = [2 + i % (VOCABULARY - 2) for i in range(200)]
    refs = [bench.ref("a"), bench.ref("b")]
    engine.load_weights(refs[0])

    async def play() -> list[Completion]:
        hold(engine, 8)
        first = asyncio.create_task(engine.generate(prompt, Sampling(40, 0.9)))
        await advance(engine, 8)
        await engine.swap_weights(refs[1])
        let_go(engine)
        return [await engine.generate(prompt, Sampling(8, 0.9)), await first]

    second, _ = asyncio.run(play())
    assert [v for v, _, _ in second.version_spans] == [refs[1].version]
    assert max(errors([second], refs, keep_cache=False, prompts=[prompt])) <= EXACT


@pytest.mark.slow
@ONE_MODEL
@pytest.mark.parametrize("mode", ["continue", "recompute"])
def test_weights_that_fail_their_proof_fail_what_is_in_flight_until_a_good_load(
    bench: Any, mode: str
) -> None:
    engine = bench.shared(swap=mode)
    engine.load_weights(bench.ref("a"))
    wrong = bench.ref("b", probed="a")

    async def play() -> tuple[list[object], list[Completion], WeightRef]:
        hold(engine, 4)
        running = [asyncio.create_task(engine.generate(prompt, LONG)) for prompt in PROMPTS]
        await advance(engine, 4)
        with pytest.raises(ParityError, match="differ from the trainer's"):
            await engine.swap_weights(wrong)
        let_go(engine)
        with pytest.raises(ParityError, match="no proven weights"):
            await engine.generate(PROMPTS[0], LONG)
        good = bench.ref("b")
        await engine.swap_weights(good)
        again = await asyncio.gather(*(engine.generate(prompt, LONG) for prompt in PROMPTS))
        return await asyncio.gather(*running, return_exceptions=True), again, good

    outcomes, again, good = asyncio.run(play())
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(failed) >= 16
    assert all(isinstance(outcome, EngineError) for outcome in failed)
    assert f"version {wrong.version} could not be loaded" in str(failed[0])
    for outcome in outcomes:
        if isinstance(outcome, Completion):
            assert wrong.version not in [v for v, _, _ in outcome.version_spans]
    assert max(errors(again, [good], keep_cache=False)) <= EXACT


@pytest.mark.slow
@ONE_MODEL
def test_a_load_that_breaks_half_way_under_requests_is_mended_by_the_next(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.shared(swap="continue")
    engine.load_weights(bench.ref("a"))
    apply = engine.apply  # type: ignore[attr-defined]

    def half(source: Any, version: int) -> None:
        apply({**source, "path": str(Path(source["path"]).parent / "half")}, version)

    doomed, good = bench.ref("b"), bench.ref("b")
    from safetensors.torch import load_file, save_file

    tensors = load_file(Path(doomed.path) / "model.safetensors")
    (Path(doomed.path).parent / "half").mkdir(exist_ok=True)
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 64)
    save_file(tensors, Path(doomed.path).parent / "half" / "model.safetensors", metadata={"format": "pt"})

    async def play() -> tuple[list[object], list[Completion]]:
        hold(engine, 4)
        running = [asyncio.create_task(engine.generate(prompt, LONG)) for prompt in PROMPTS[:8]]
        await advance(engine, 4)
        monkeypatch.setattr(engine, "apply", half)
        with pytest.raises(EngineError, match="could not be loaded"):
            await engine.swap_weights(doomed)
        monkeypatch.undo()
        let_go(engine)
        await engine.swap_weights(good)
        again = await asyncio.gather(*(engine.generate(prompt, LONG) for prompt in PROMPTS))
        return await asyncio.gather(*running, return_exceptions=True), again

    outcomes, again = asyncio.run(play())
    assert any(isinstance(outcome, EngineError) for outcome in outcomes)
    assert max(errors(again, [good], keep_cache=False)) <= EXACT


@pytest.mark.slow
@ONE_MODEL
@pytest.mark.parametrize("mode", ["drain", "continue"])
def test_a_damaged_directory_disturbs_nothing(bench: Any, mode: str) -> None:
    engine = bench.shared(swap=mode)
    good, damaged = bench.ref("a"), bench.ref("b")
    engine.load_weights(good)
    file = Path(damaged.path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8] + b"damaged!")

    async def play() -> list[Completion]:
        running = [asyncio.create_task(engine.generate(prompt, LONG)) for prompt in PROMPTS]
        await asyncio.sleep(0)
        with pytest.raises(IntegrityError, match="does not match the digest"):
            await engine.swap_weights(damaged)
        return await asyncio.gather(*running)

    completions = asyncio.run(play())
    assert {v for c in completions for v, _, _ in c.version_spans} == {good.version}
    assert max(errors(completions, [good], keep_cache=False)) <= EXACT


@pytest.mark.slow
@ONE_MODEL
def test_swaps_asked_for_together_are_made_one_after_the_other(bench: Any) -> None:
    engine = bench.shared(swap="recompute")
    refs = [bench.ref(name) for name in "aba"]

    async def play() -> list[float]:
        return await asyncio.gather(*(engine.swap_weights(ref) for ref in refs))

    assert max(asyncio.run(play())) <= EXACT
    assert engine.version == refs[-1].version
    with pytest.raises(EngineError, match="only grow"):
        asyncio.run(engine.swap_weights(refs[0]))


@pytest.mark.slow
@ONE_MODEL
def test_a_swap_given_up_while_draining_lets_requests_pass_again(bench: Any) -> None:
    engine = bench.shared(swap="drain")
    refs = [bench.ref("a"), bench.ref("b")]
    engine.load_weights(refs[0])

    async def play() -> Completion:
        running = asyncio.create_task(engine.generate(PROMPTS[0], LONG))
        await asyncio.sleep(0)
        swap = asyncio.create_task(engine.swap_weights(refs[1]))
        while engine._swap._gate is None and not swap.done():  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        swap.cancel()
        await asyncio.gather(swap, running, return_exceptions=True)
        return await engine.generate(PROMPTS[0], LONG)

    assert {v for v, _, _ in asyncio.run(play()).version_spans} <= {refs[0].version, refs[1].version}
    asyncio.run(engine.swap_weights(refs[1]))
    assert engine.version == refs[1].version


@ONE_MODEL
def test_an_unknown_swap_is_refused_with_the_likely_one(bench: Any) -> None:
    with pytest.raises(RecipeError, match="did you mean 'recompute'"):
        bench.fresh(swap="recompte")


def test_segments_leave_out_versions_that_sampled_nothing() -> None:
    segments = Segments(3)
    segments.cut(4, 0)
    segments.cut(6, 5)
    segments.cut(7, 5)
    assert segments.spans(9) == [(4, 0, 5), (7, 5, 9)]
    assert segments.spans(5) == [(4, 0, 5)]
    assert Segments(1).spans(0) == []


def test_weights_that_nobody_waits_for_any_more_are_released_where_they_came() -> None:
    released: list[object] = []

    async def play() -> list[asyncio.Future[Arrived]]:
        loop = asyncio.get_running_loop()
        came, failed, cancelled = (loop.create_future() for _ in range(3))
        came.set_result(Arrived((), None, {}, released.append))
        failed.set_exception(OSError("no such weights"))
        cancelled.cancel()
        for fetching in (came, failed, cancelled):
            _give_up(fetching)
        return [came, failed, cancelled]

    asyncio.run(play())
    assert released == [None]
