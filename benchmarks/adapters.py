"""`python -m benchmarks.adapters`: what one version of a LoRA run costs, as an adapter and as whole weights.

A model of 30 million random weights; rank 16 on the four attention projections. Bytes on disk, and medians
over versions of the seconds to publish one (files, digests, probe) and to load and prove it in the
transformers engine; then the adapter's share of each. No bar.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import finish
from explorers.engines.transformers_engine import TransformersEngine
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from trainers.models.adapters import merged_model
from trainers.models.tiny_model import build_tiny_model
from trainers.models.weights import write_weights
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan

VERSIONS = 5
SHAPE = {"hidden_size": 512, "num_layers": 9, "num_heads": 8, "intermediate_size": 1536}
LORA = {"r": 16, "lora_alpha": 32, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def main() -> None:
    """Publish and load the same model both ways; print a line for each, the ratios and the JSON line."""
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), SHAPE, VERSIONS)
    for what, cost in found.items():
        print(what, *(f"{key} {value:,.2f}" for key, value in cost.items()), sep="  ")
    versions = {name: metadata.version(name) for name in ("rft-data", "torch", "transformers", "peft")}
    finish([], versions, found)


def measure(folder: Path, shape: Mapping[str, int], versions: int) -> dict[str, dict[str, float]]:
    """`bytes`, `publish_s` and `load_s` of a version as `whole` weights, as an `adapter`, and the `ratio`."""
    base = build_tiny_model(folder / "base", seed=0, **shape)
    with closing(
        GrpoTrainer(GrpoPlan(base, folder / "run", 1, 8, {}, 0, objective={"lora": LORA}))
    ) as trainer:

        def whole(directory: Path) -> dict[str, Any]:
            model, state = merged_model(trainer._trainer.model)
            write_weights(model, trainer.tokenizer, directory, state)
            return {}

        ways = {"whole": whole, "adapter": trainer.save_weights}
        found = {what: _cost(save, folder / what, base, versions) for what, save in ways.items()}
    ratio = {key: found["adapter"][key] / found["whole"][key] for key in found["whole"]}
    return {**found, "ratio": ratio}


def _cost(
    save: Callable[[Path], dict[str, Any]], folder: Path, base: Path, versions: int
) -> dict[str, float]:
    published, loaded = [], []
    with closing(TransformersEngine(base, seed=0, max_model_len=64, options={})) as engine:
        for version in range(versions):
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
    return {"bytes": size, "publish_s": median(published), "load_s": median(loaded)}


if __name__ == "__main__":
    main()
