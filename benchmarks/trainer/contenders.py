"""The contenders: the same update by a bare loop, by our trainer, and by stock TRL.

Each takes a case and returns a turn. All load the model the same way, use fused AdamW at the same learning
rate, clip to the same norm, and run in float32 without gradient checkpointing on a CPU.

Stock TRL cannot be given completions: its `rollout_func` returns the stored ones here, and its reward
function the stored rewards, so that it makes the advantages itself. It takes the ratio to be 1 where ours and
the bare loop compare with stored logprobs, which differ from that by what few steps of 1e-6 change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.trainer.case import COMPLETION_TOKENS, GROUP, LEARNING_RATE, PROMPT_TOKENS, ROWS, SEED, Case

MAX_GRAD_NORM = 1.0
CLIP = 0.2
ADAM = {"lr": LEARNING_RATE, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "fused": True}
OPTIONS: Mapping[str, Any] = {
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": MAX_GRAD_NORM,
    "epsilon": CLIP,
    "loss_type": "dapo",
    "optim": "adamw_torch_fused",
}


@dataclass
class Turn:
    """Measurements of one process."""

    seconds: list[float] = field(default_factory=list)
    """Wall seconds of each optimizer step."""
    processor_seconds: list[float] = field(default_factory=list)
    """Processor seconds of each step, all threads together: a busy machine disturbs them less."""
    grad_norms: list[float] = field(default_factory=list)
    """Gradient norm of each step, before clipping."""

    def stepped(self, began: tuple[float, float], grad_norm: float) -> None:
        """Take down a step that began at `began`."""
        wall, processor = _clock()
        self.seconds.append(wall - began[0])
        self.processor_seconds.append(processor - began[1])
        self.grad_norms.append(grad_norm)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _clock() -> tuple[float, float]:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def bare(case: Case, steps: int, folder: Path) -> Turn:
    """Forward, clipped loss, backward, clip, AdamW, by hand."""
    import torch
    from torch.nn.functional import cross_entropy

    from trainers.models.weights import load_model

    device = _device()
    model = load_model(case.model).train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **ADAM)
    rows, turn = case.table().to_pydict(), Turn()
    for _ in range(steps):
        began = _clock()
        ids = torch.tensor(rows["token_ids"], device=device)
        advantages = torch.tensor(rows["advantage"], device=device)
        old = torch.tensor(rows["logprobs"], device=device)[:, PROMPT_TOKENS:]
        answer = ids[:, PROMPT_TOKENS:]
        scored = model(input_ids=ids, logits_to_keep=COMPLETION_TOKENS + 1, use_cache=False)
        logits = scored.logits[:, :-1]
        logprobs = -cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="none").view_as(old)
        ratio = (logprobs - old).exp()
        terms = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        (-terms.mean()).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        turn.stepped(began, float(norm))
    return turn


def ours(case: Case, steps: int, folder: Path) -> Turn:
    """`GrpoTrainer.step`, from leased rows to changed weights."""
    import torch

    from rft_data.core.groups import Lease
    from rft_data.core.protocols import LeasedBatch
    from trainers.policy.grpo import GrpoTrainer
    from trainers.policy.plan import GrpoPlan, Limits

    limits = Limits(threads=torch.get_num_threads())
    trainer = GrpoTrainer(GrpoPlan(case.model, folder, steps, ROWS, OPTIONS, SEED, limits=limits))
    table, turn = case.table(), Turn()
    for step in range(steps):
        seqs = tuple(range(ROWS))
        batch = LeasedBatch(Lease("trainer", step, 0, step, seqs, ("a", "b"), "digest"), table)
        began = _clock()
        metrics = trainer.step(batch)
        turn.stepped(began, metrics["grad_norm"])
    trainer.close()
    return turn


def stock(case: Case, steps: int, folder: Path) -> Turn:
    """TRL's own GRPOTrainer with stored completions and rewards."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from trainers.models.weights import load_model, load_tokenizer

    rows = case.table().to_pylist()
    turn = Turn()

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = _clock()

        def on_log(self, *_: Any, logs: Mapping[str, float], **__: Any) -> None:
            if "grad_norm" in logs:
                turn.stepped(self.began, logs["grad_norm"])
                self.began = _clock()

    config = GRPOConfig(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=ROWS,
        num_generations=GROUP,
        max_completion_length=COMPLETION_TOKENS,
        shuffle_dataset=False,
        seed=SEED,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **OPTIONS,
    )
    trainer = GRPOTrainer(
        model=load_model(case.model),
        reward_funcs=_stored_reward(rows),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["0", "1"] * steps}),
        processing_class=load_tokenizer(case.model),
        rollout_func=lambda prompts, _: _stored_rollouts(rows, prompts),
        callbacks=[Clock()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return turn


def _stored_rollouts(rows: list[dict[str, Any]], prompts: list[str]) -> dict[str, list[list[Any]]]:
    """TRL asks with each prompt GROUP times in a row; prompts are the groups' numbers."""
    asked = [rows[int(prompt) * GROUP + at % GROUP] for at, prompt in enumerate(prompts)]
    return {
        "prompt_ids": [row["token_ids"][:PROMPT_TOKENS] for row in asked],
        "completion_ids": [row["token_ids"][PROMPT_TOKENS:] for row in asked],
        "logprobs": [row["logprobs"][PROMPT_TOKENS:] for row in asked],
    }


def _stored_reward(rows: list[dict[str, Any]]) -> Callable[..., list[float]]:
    rewards = {tuple(row["token_ids"][PROMPT_TOKENS:]): row["reward"] for row in rows}

    def stored_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [rewards[tuple(ids)] for ids in completion_ids]

    return stored_reward


CONTENDERS: Mapping[str, Callable[[Case, int, Path], Turn]] = {"bare": bare, "ours": ours, "stock": stock}
