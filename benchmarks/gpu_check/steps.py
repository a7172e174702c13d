"""The steps of the check: what each runs with GPUs, what it runs on a CPU, and what must come out.

A step is a run of the quickstart with other settings, or a benchmark with its own bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_ENGINE_ON_GPU = ("placement.use=local", "placement.explorers.gpus=1")
"""The trainer, of a tiny model, is on the CPU."""
_TWO_GPUS = ("placement.use=local", "placement.explorers.gpus=1", "placement.trainer.gpus=1")
_HALF = "explorer.engine.options={gpu_memory_utilization: 0.4}"
"""Explorer and trainer are one process on one GPU."""
_FEW_STEPS = ("stages.1.steps=6", "evaluation.limit=32")
_PROCESSES = "placement.use=local"
_SMALL = (
    "model.build={use: tiny_qwen2, hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}",
    *(f"tasks.{n}.source.size=200" for n in range(3)),
    *(f"experts.{n}.limit=16" for n in range(2)),
    "stages.0.trl.num_train_epochs=1",
    "stages.0.trl.per_device_train_batch_size=64",
    "experience_ops=[{grpo_advantage_mapper: {}}]",  # nothing is dropped where nobody learns
    "stages.1.steps=2",
    "stages.1.groups_per_step=2",
    "stages.1.max_explored=16",
    "evaluation.limit=8",
)
_PLAIN = ("explorer.engine.use=transformers", *_SMALL)
_SHARDED_BY_GLOO = (
    *_PLAIN,
    _PROCESSES,
    "placement.trainer={processes: 2, cpus: 2, shard: fsdp2}",
    "explorer.engine.transport.use=gloo",
)
_IN_TURNS_BY_SHM = (*_SMALL, "placement={use: local, colocate: true}", "explorer.engine.transport.use=shm")
"""Each is the smoke form of two steps, and run once: starting processes is what takes time on a CPU."""


@dataclass(frozen=True, slots=True)
class RunStep:
    """A run of the quickstart."""

    name: str
    gpu: Sequence[str]
    """Settings over the recipe's, with GPUs."""
    smoke: Sequence[str]
    """Settings over the recipe's, on a CPU."""
    gpus: int = 1
    """So many it needs."""
    least: Mapping[str, float] = field(default_factory=dict)
    """Figures that are to be at least this, with GPUs."""
    most: Mapping[str, float] = field(default_factory=dict)
    """Figures that are to be at most this, with GPUs and without."""


@dataclass(frozen=True, slots=True)
class BenchStep:
    """A benchmark of this package, whose bars decide."""

    name: str
    module: str
    gpu: Sequence[str]
    """Arguments, with GPUs."""
    smoke: Sequence[str]
    """Arguments on a CPU, where only its end decides: small runs keep no bars."""
    gpus: int = 1


def steps(gpus: int) -> list[RunStep | BenchStep]:
    """All steps, in order. `gpus`: how many this machine has; FSDP2 uses all but the explorer's."""
    ranks = max(2, gpus - 1)
    sharded = f"placement.trainer={{processes: {ranks}, gpus: {ranks}, shard: fsdp2}}"
    return [
        RunStep("quickstart", (_HALF,), _PLAIN, least={"gained": 0.3}, most={"parity": 1e-2}),
        RunStep(
            "publication_nccl",
            (*_TWO_GPUS, *_FEW_STEPS, "explorer.engine.transport.use=nccl"),
            _SHARDED_BY_GLOO,
            gpus=2,
            most={"parity": 1e-2},
        ),
        RunStep(
            "publication_ipc",
            (*_ENGINE_ON_GPU, *_FEW_STEPS, "explorer.engine.transport.use=ipc"),
            _IN_TURNS_BY_SHM,
            most={"parity": 1e-2},
        ),
        RunStep(
            "bf16_agreement",
            (
                *_FEW_STEPS,
                "explorer.engine.options={gpu_memory_utilization: 0.4, dtype: bfloat16}",
                "stages.1.trl.bf16=true",
            ),
            (*_PLAIN, "explorer.engine.options={dtype: bfloat16}"),
            most={"parity": 0.1},
        ),
        BenchStep(
            "tokens_vs_llm_generate",
            "benchmarks.explorer",
            ("--parts", "tokens", "--at", "64"),
            ("--quick", "--parts", "tokens"),
        ),
        BenchStep(
            "step_vs_bare_loop",
            "benchmarks.trainer",
            ("--parts", "steps", "--sizes", "100m,500m"),
            ("--quick", "--parts", "steps"),
        ),
        RunStep(
            "colocated_sleep_and_wake",
            (
                "placement={use: local, colocate: true, explorers: {gpus: 1}, trainer: {gpus: 1}}",
                *_FEW_STEPS,
                "explorer.engine.options={gpu_memory_utilization: 0.4}",
            ),
            _IN_TURNS_BY_SHM,
            most={"parity": 1e-2},
        ),
        RunStep(
            "fsdp2",
            ("placement.use=local", "placement.explorers.gpus=1", sharded, *_FEW_STEPS),
            _SHARDED_BY_GLOO,
            gpus=3,
            most={"parity": 1e-2},
        ),
    ]
