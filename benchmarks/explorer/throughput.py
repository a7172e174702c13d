"""`python -m benchmarks.explorer.throughput JSON FD`: one contender in a process of its own.

Both use vLLM with the same options and prompts, temperature 1, logprobs of the sampled tokens and completions
of one length. A turn plays so many requests at once. `generate` is
vLLM's own `LLM.generate`, with its engine in this process as ours has it (one in a further process is many
times slower on two cores). `ours` is the role of the explorer: templates, rows, rewards, checks and durable
appends included.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Contenders, Turn, take_turns
from explorers.engines.vllm_options import engine_arguments
from explorers.role import ExplorerRole, explorer_role
from rft_data.buffer import Buffer
from rft_data.core.files import write_manifest
from rft_data.core.groups import Assignment, Played, Ticket
from rft_data.core.rows import Task, WeightRef
from rft_data.core.words import GroupOutcome

GROUP = 8
MODEL_LEN = 256


def options(concurrency: int) -> dict[str, Any]:
    """vLLM's options for both: 5 MiB of cache a request, whose block of 128 tokens takes 4 here."""
    room = max(64, 5 * concurrency) << 20
    return {"max_num_seqs": concurrency, "enable_prefix_caching": True, "kv_cache_memory_bytes": room}


def tasks(groups: int) -> list[Task]:
    """Sums, a group each."""
    return [_task(f"What is {17 * i + 3} + {29 * i + 8}?", 46 * i + 11) for i in range(groups)]


def _task(text: str, answer: int) -> Task:
    return Task("sums", ({"role": "user", "content": text},), str(answer))


def write_model(folder: str, shape: Mapping[str, Any]) -> dict[str, Any]:
    """A published folder of random weights."""
    from trainers.models.tiny_model import build_tiny_model

    return published(build_tiny_model(Path(folder), seed=0, max_position_embeddings=MODEL_LEN, **shape))


def published(path: Path) -> dict[str, Any]:
    """Make a model's folder a published one, as an explorer takes it; counts its parameters."""
    import torch

    from rft_data.weights.probe import Probe
    from trainers.models.weights import load_model

    model = load_model(path)
    ids = list(range(5, 37))
    with torch.no_grad():
        logprobs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    scored = logprobs[:-1].gather(-1, torch.tensor(ids)[1:, None])[:, 0].numpy()
    Probe((tuple(ids),), (np.concatenate([[0.0], scored]).astype(np.float32),)).save(path)
    write_manifest(path, {"run_id": "bench", "version": 0, "step": 0})
    return {"parameters": sum(p.numel() for p in model.parameters())}


@contextmanager
def generate(folder: str, concurrency: int, requests: int, tokens: int) -> Iterator[Turn]:
    """vLLM's own offline entry point."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from transformers import AutoTokenizer
    from vllm import LLM, SamplingParams

    llm = LLM(**_same_options(folder, concurrency))
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def prompt(task: Task) -> dict[str, list[int]]:
        said = [dict(message) for message in task.messages]
        ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        return {"prompt_token_ids": ids}

    prompts = [prompt(task) for task in tasks(requests // GROUP) for _ in range(GROUP)]
    settings = SamplingParams(
        temperature=1.0, max_tokens=tokens, min_tokens=tokens, logprobs=0, detokenize=False
    )

    def turn(requests: int) -> dict[str, float]:
        with spent() as costs:
            done = llm.generate(prompts[:requests], settings, use_tqdm=False)
        check_tokens(sum(len(one.outputs[0].token_ids) for one in done), requests * tokens)
        return costs

    yield turn


@contextmanager
def spent() -> Iterator[dict[str, float]]:
    """Seconds of wall and processor time of what is done within."""
    costs: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield costs
    costs |= {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


def check_tokens(found: int, wanted: int) -> None:
    """Raises: RuntimeError where a contender sampled another number of tokens than was asked for."""
    if found != wanted:
        raise RuntimeError(f"{found} tokens were sampled, {wanted} were asked for.")


def _same_options(folder: str, concurrency: int) -> dict[str, Any]:
    """Options that our engine gives vLLM beyond vLLM's defaults, without our worker."""
    from vllm.engine.arg_utils import EngineArgs

    given, plain = (
        engine_arguments(Path(folder), 0, MODEL_LEN, options(concurrency)),
        EngineArgs(model=folder),
    )
    names = [field.name for field in fields(EngineArgs) if field.name != "worker_extension_cls"]
    changed = {name: getattr(given, name) for name in names if getattr(given, name) != getattr(plain, name)}
    return {"model": folder, **changed}


@contextmanager
def ours(folder: str, concurrency: int, requests: int, tokens: int) -> Iterator[Turn]:
    """The explorer's role on a buffer. `requests`: the most of a turn."""
    names, known = itertools.count(), tasks(requests // GROUP)
    with tempfile.TemporaryDirectory() as place, Buffer(f"{place}/buffer") as buffer:
        sampling = {"max_tokens": tokens, "min_tokens": tokens}
        role = explorer_role(buffer, plan=plan(folder, MODEL_LEN, options(concurrency), sampling))

        def turn(requests: int) -> dict[str, float]:
            with spent() as costs:
                played = asyncio.run(explored(role, known[: requests // GROUP], f"turn-{next(names)}"))
            rows = buffer.take([seq for group in played for seq in group.seqs])
            check_tokens(sum(sum(mask) for mask in rows["action_mask"].to_pylist()), requests * tokens)
            return costs

        try:
            asyncio.run(role.load_weights(WeightRef("bench", 0, 0, folder)))
            yield turn
        finally:
            role.close()


def plan(
    folder: str,
    longest: int,
    of_vllm: Mapping[str, Any],
    sampling: Mapping[str, int],
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The options of an explorer with vLLM on the model in `folder`. `longest`: tokens of a prompt with its
    completion."""
    engine = {"use": "vllm", "seed": 0, "max_model_len": longest, "options": dict(of_vllm)}
    return {
        "engine": engine,
        "model": folder,
        "workflow": {"use": "single_turn"},
        "reward": [{"use": "exact_answer"}],
        "run_id": "bench",
        "attempt": 0,
        "explorer_id": "explorer-0",
        "group_size": GROUP,
        "sampling": dict(sampling),
        "limits": dict(limits or {}),
    }


async def explored(role: ExplorerRole, chosen: Sequence[Task], name: str) -> list[Played]:
    """Play a group of each task, all at once. Raises: RuntimeError when one fails."""
    found = await role.explore(
        [Assignment(Ticket(f"{name}-{i}", i, 0), task) for i, task in enumerate(chosen)]
    )
    failed = [group.error for group in found if group.outcome != GroupOutcome.ARRIVED]
    if failed:
        raise RuntimeError(failed[0])
    return found


CONTENDERS: Contenders = {"generate": generate, "ours": ours}

if __name__ == "__main__":
    take_turns(CONTENDERS)
