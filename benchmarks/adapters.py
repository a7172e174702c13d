"""`python -m benchmarks.adapters`: what one version of a LoRA run costs, as an adapter and as whole weights.

A model of 30 million random weights; rank 16 on the four attention projections. Bytes on disk, and medians
over versions of the seconds to publish one (files, digests, probe) and to load and prove it in the
transformers engine. It judges nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from explorers.transformers_engine import TransformersEngine
from rft_data.manifest import write_manifest
from rft_data.rows import WeightRef
from trainers.adapters import merged_model
from trainers.grpo import GrpoTrainer
from trainers.tiny_model import build_tiny_model
from trainers.weights import write_weights

VERSIONS = 5
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def main() -> None:
    """Publish and load the same model both ways; print a line for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = build_tiny_model(
            folder / "base", seed=0, hidden_size=512, num_layers=9, num_heads=8, intermediate_size=1536
        )
        with closing(GrpoTrainer(base, folder / "run", 1, 8, {}, 0, objective={"lora": LORA})) as trainer:

            def whole(directory: Path) -> dict[str, Any]:
                write_weights(*_merged(trainer, directory))
                return {}

            for what, save in (("whole", whole), ("adapter", trainer.save_weights)):
                print(what, *_measured(save, folder / what, base), sep="  ")


def _merged(trainer: GrpoTrainer, directory: Path) -> tuple[Any, Any, Path, Any]:
    model, state = merged_model(trainer._trainer.model)
    return model, trainer.tokenizer, directory, state


def _measured(save: Callable[[Path], dict[str, Any]], folder: Path, base: Path) -> tuple[str, str, str]:
    published, loaded = [], []
    with closing(TransformersEngine(base, seed=0, max_model_len=64, options={})) as engine:
        for version in range(VERSIONS):
            directory = folder / str(version)
            directory.mkdir(parents=True)
            start = time.perf_counter()
            facts = {"run_id": "run", "version": version, "step": version, **save(directory)}
            write_manifest(directory, facts)
            published.append(time.perf_counter() - start)
            start = time.perf_counter()
            engine.load_weights(WeightRef("run", version, version, str(directory)))
            loaded.append(time.perf_counter() - start)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return f"{size:,} bytes", f"published in {median(published):.2f} s", f"loaded in {median(loaded):.2f} s"


if __name__ == "__main__":
    main()
