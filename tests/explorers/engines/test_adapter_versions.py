"""Versions that are adapters: each engine and transport serves them merged and proves them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import peft
import psutil
import pytest
import torch

from explorers.transports import make_transport
from explorers.transports.sender import DirectorySource
from explorers.transports.tensor_sources import open_source
from explorers.transports.transfer import update_info
from rft_data.core.errors import IntegrityError, MissingFileError
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from rft_data.weights.adapter import ADAPTER, adapter_facts
from rft_data.weights.probe import Probe
from tests.explorers.conftest import Published, publish

TARGETS = ["q_proj", "o_proj", "down_proj"]


def adapter_ref(of: Any, *, seed: int = 0) -> tuple[WeightRef, dict[str, torch.Tensor]]:
    """Publish an adapter of the bench's base in PEFT's own way; also PEFT's merged tensors."""
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        r=4, lora_alpha=16, target_modules=TARGETS, rank_pattern={"o_proj": 2}, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(copy.deepcopy(of.models["a"]), config)
    for name, tensor in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.05)
    version = next(of.versions)
    directory = of.folder / f"v{version}"
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink()
    scales = {
        f"{name.removeprefix('base_model.model.')}.weight": module.scaling["default"]
        for name, module in model.named_modules()
        if hasattr(module, "lora_A")
    }
    merged = model.merge_and_unload()
    Probe.load(publish(merged, of.folder / f"merged-{version}")).save(directory)
    want = {name: tensor.detach() for name, tensor in merged.state_dict().items()}
    facts = adapter_facts(of.base, scales, directory)
    write_manifest(directory, {"run_id": "run", "version": version, "step": 0, ADAPTER: facts})
    return WeightRef("run", version, 0, str(directory)), want


def equal(found: dict[str, torch.Tensor], want: dict[str, torch.Tensor], tied: bool) -> bool:
    names = want.keys() - ({"lm_head.weight"} if tied else set())
    assert found.keys() - {"lm_head.weight"} == names - {"lm_head.weight"}
    return all(float((found[name].double() - want[name].double()).abs().max()) <= 1e-6 for name in names)


@pytest.fixture(params=["directory", "shm"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    root = {} if request.param == "directory" else {"root": str(tmp_path / "shm")}
    return {"use": request.param, **root}


@pytest.mark.slow
def test_transports_bring_what_peft_merges(tied: Published, transport: dict[str, Any]) -> None:
    ref, want = adapter_ref(tied)
    brought_by = make_transport(**transport)
    with brought_by.fetch(ref) as arrived:
        found = dict(open_source(arrived.source))
        assert arrived.tensors.keys() == found.keys()
        assert {n: tuple(t.shape) for n, t in found.items()} == {
            n: s for n, (_, s) in arrived.tensors.items()
        }
    assert equal(found, want, tied=True)
    brought_by.close()


@pytest.mark.slow
def test_senders_merge_before_they_send(tied: Published) -> None:
    pytest.importorskip("vllm")
    ref, want = adapter_ref(tied)
    source = DirectorySource(Path(ref.path), "cpu")
    assert equal(dict(source), want, tied=True)
    with make_transport().fetch(ref) as arrived:
        told = update_info(arrived.tensors)
    metadata = source.metadata()
    assert told["names"] == [entry.name for entry in metadata] == [name for name, _ in source]
    assert told["dtype_names"] == [str(entry.dtype).removeprefix("torch.") for entry in metadata]


@pytest.mark.slow
def test_engines_prove_an_adapter_after_whole_weights_and_whole_weights_after_it(
    bench: Any, transport: dict[str, Any]
) -> None:
    engine = bench.engine if transport["use"] == "directory" else bench.fresh(transport=transport)
    assert asyncio.run(engine.swap_weights(bench.ref("b"))) <= 1e-4
    first, _ = adapter_ref(bench)
    assert asyncio.run(engine.swap_weights(first)) <= 1e-4
    second, _ = adapter_ref(bench, seed=1)
    assert engine.load_weights(second) <= 1e-4
    assert engine.load_weights(bench.ref("a")) <= 1e-4
    if engine is not bench.engine:
        engine.close()


@pytest.fixture
def kept(bench: Any) -> Iterator[Path]:
    """The base's file, put back afterwards."""
    file = bench.base / "model.safetensors"
    data = file.read_bytes()
    yield file
    file.write_bytes(data)


@pytest.mark.slow
def test_bad_base_is_one_error_and_the_old_version_is_still_served(
    bench: Any, kept: Path, tmp_path: Path
) -> None:
    served = bench.ref("b")
    bench.engine.load_weights(served)
    ref, _ = adapter_ref(bench)
    data = bytearray(kept.read_bytes())
    data[-3] ^= 64
    kept.write_bytes(data)
    with pytest.raises(
        IntegrityError, match=r"model\.safetensors is not the file that the published adapter"
    ):
        asyncio.run(bench.engine.swap_weights(ref))
    kept.unlink()
    with pytest.raises(MissingFileError, match="cannot be read here; every machine with an explorer"):
        bench.engine.load_weights(ref)
    with closing(make_transport(use="shm", root=str(tmp_path))) as copied:
        for _ in range(3):
            with pytest.raises(MissingFileError, match="cannot be read here"):
                copied.fetch(ref)
        held = [file.path for file in psutil.Process().open_files() if file.path.startswith(str(tmp_path))]
        assert len(held) == 1  # that the run's folder is in use, and no copy
    assert bench.engine.version == served.version
    data[-3] ^= 64
    kept.write_bytes(data)
    assert bench.engine.load_weights(ref) <= 1e-4
    assert bench.engine.version == ref.version
