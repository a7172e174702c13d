"""Code that is mutated, and the tests that ought to notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ADVANTAGES = ("tests/ops/advantages",)
_BUFFER = (
    "tests/rft_data/buffer/test_bounds.py",
    "tests/rft_data/buffer/test_validation_fuzz.py",
    "tests/rft_data/buffer/test_buffer.py",
)
_DEFAULTS = "tests/ops/test_defaults.py"
_CRITIC = ("tests/trainers/policy/test_critic.py", "tests/trainers/policy/test_ppo.py")
_NEAR = (
    "tests/ops/similarity/test_sketches.py",
    "tests/ops/similarity/test_shingles.py",
    "tests/ops/similarity/test_rollout_near_dup_deduplicator.py",
)
_PIPELINE = ("tests/ops/runtime/test_pipeline.py", "tests/ops/runtime/test_native.py")
_SAMPLER = ("tests/rft_data/sampler",)
_TASK_OPS = ("tests/ops/tasks", _DEFAULTS)

ROWS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("selectors", "rft_data/tasks/selectors/*.py", ("tests/rft_data/tasks/selectors",)),
    ("sampler", "rft_data/sampler/*.py", _SAMPLER),
    (
        "ledger",
        "rft_data/sampler/ledger.py",
        ("tests/rft_data/sampler/test_ledger.py", "tests/rft_data/sampler/test_sampler.py"),
    ),
    (
        "conservation",
        "rft_data/sampler/conservation.py",
        ("tests/rft_data/sampler/test_conservation.py", "tests/rft_data/loop/test_loop.py"),
    ),
    ("buffer", "rft_data/buffer/intake.py", _BUFFER),
    ("buffer", "rft_data/buffer/validation.py", _BUFFER),
    ("buffer", "rft_data/buffer/column_checks.py", _BUFFER),
    (
        "buffer",
        "rft_data/buffer/group_commit.py",
        ("tests/rft_data/buffer/test_group_commit.py", *_BUFFER[1:]),
    ),
    (
        "digests",
        "rft_data/core/digests.py",
        (
            "tests/rft_data/core/test_schema.py",
            "tests/rft_data/buffer/test_whole_rows.py",
            "tests/rft_data/buffer/test_buffer_memory.py",
        ),
    ),
    ("versions", "rft_data/weights/*.py", ("tests/rft_data/weights",)),
    ("versions", "rft_data/core/files.py", ("tests/rft_data/weights",)),
    ("ops", "ops/advantages/*.py", ("tests/ops/advantages/test_{stem}.py", _DEFAULTS)),
    ("ops", "ops/advantages/column.py", _ADVANTAGES),
    ("ops", "ops/rewards/*.py", ("tests/ops/rewards/test_{stem}.py", _DEFAULTS)),
    ("ops", "ops/similarity/*.py", ("tests/ops/similarity/test_{stem}.py", _DEFAULTS)),
    ("ops", "ops/similarity/shingles.py", ("tests/ops/similarity/test_shingles.py", *_NEAR)),
    ("ops", "ops/similarity/fingerprints.py", _NEAR),
    ("ops", "ops/similarity/sketches.py", _NEAR),
    (
        "ops",
        "ops/similarity/overlap.py",
        ("tests/ops/similarity/test_semantic_diversity_filter.py", *_NEAR),
    ),
    ("ops", "ops/similarity/stored_vectors.py", ("tests/ops/similarity/test_semantic_diversity_filter.py",)),
    ("ops", "ops/similarity/word_ngrams.py", ("tests/ops/tasks/test_task_decontamination_filter.py",)),
    ("ops", "ops/tasks/*.py", _TASK_OPS),
    ("ops", "ops/judge/*.py", ("tests/ops/judge", _DEFAULTS)),
    ("ops", "ops/base.py", ("tests/ops/test_base.py", "tests/ops/rewards", *_PIPELINE)),
    ("ops", "ops/grouping.py", ("tests/ops/advantages", "tests/ops/rewards")),
    (
        "ops",
        "ops/members.py",
        ("tests/ops/test_members.py", "tests/ops/similarity/test_semantic_diversity_filter.py", _NEAR[2]),
    ),
    ("ops", "ops/rollouts.py", ("tests/ops/rewards", "tests/ops/advantages", *_PIPELINE)),
    ("ops", "ops/runtime/annotations.py", _PIPELINE),
    (
        "ops",
        "ops/runtime/native.py",
        ("tests/ops/runtime/test_native.py", "tests/ops/runtime/test_limits.py"),
    ),
    ("ops", "ops/runtime/pipeline.py", _PIPELINE),
    ("ops", "ops/runtime/stage.py", _PIPELINE),
    ("ops", "ops/runtime/specs.py", ("tests/ops/runtime/test_specs.py", *_PIPELINE)),
    ("ops", "ops/runtime/limits.py", ("tests/ops/runtime/test_limits.py",)),
    ("explorers", "explorers/workflows/*.py", ("tests/explorers/workflows",)),
    ("explorers", "explorers/engines/swap.py", ("tests/explorers/engines/test_swap.py",)),
    ("losses", "trainers/policy/losses/*.py", ("tests/trainers/policy/losses",)),
    (
        "losses",
        "trainers/policy/off_policy.py",
        ("tests/trainers/policy/test_off_policy.py", "tests/trainers/policy/test_objective.py"),
    ),
    ("losses", "trainers/policy/kl.py", ("tests/trainers/policy/test_kl.py",)),
    ("critics", "trainers/policy/batch_ops/*.py", ("tests/trainers/policy/batch_ops", *_CRITIC)),
    ("critics", "trainers/policy/critics/*.py", _CRITIC),
    ("critics", "trainers/policy/critic.py", _CRITIC),
)
"""Part, module or pattern of modules, files and folders of tests (likely killers first). `{stem}` is the
module's own name; of two rows for one module the later one holds."""

_STORAGE = ("hypothesis", "numpy", "pyarrow.parquet", "pydantic", "ruamel.yaml", "duckdb", "lance", "lancedb")
_TRAINING = (*_STORAGE, "torch", "transformers", "datasets", "peft", "trl.trainer.grpo_trainer")


@dataclass(frozen=True, slots=True)
class Target:
    """A module, the part whose bar it counts for, and its tests."""

    module: str
    part: str
    tests: tuple[str, ...]

    @property
    def libraries(self) -> tuple[str, ...]:
        """Modules that are imported before children are forked."""
        return _TRAINING if self.module.startswith(("trainers/", "explorers/", "ops/")) else _STORAGE


def targets(root: Path) -> list[Target]:
    """Every module to mutate, in the order of the rows."""
    found: dict[str, Target] = {}
    for part, pattern, tests in ROWS:
        for path in sorted(root.glob(pattern)):
            module = str(path.relative_to(root))
            found[module] = Target(module, part, tuple(test.format(stem=path.stem) for test in tests))
    return list(found.values())


def test_files(root: Path, target: Target) -> Iterator[Path]:
    """The files of a module's tests, with the conftest files that they use."""
    for test in target.tests:
        path = root / test
        yield from sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
        folder = path if path.is_dir() else path.parent
        yield from (
            up / "conftest.py"
            for up in (folder, *folder.parents)
            if (up / "conftest.py").is_file() and up != root
        )
