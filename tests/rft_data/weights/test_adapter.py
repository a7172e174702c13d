"""Adapters on disk: the merge against float64, and a base that is not there, damaged or of other names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rft_data.core.errors import IntegrityError, MissingFileError, RecipeError
from rft_data.core.files import write_manifest
from rft_data.weights.adapter import ADAPTER, adapter_facts, adapter_in, check_base, manifest_adapter, merged

SCALES = {"a.q.weight": 0.5, "b.q.weight": 3.0}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    torch.manual_seed(0)
    save_file({"a.q.weight": torch.randn(5, 7).bfloat16(), "a.norm": torch.ones(3)}, folder / "1.safetensors")
    save_file({"b.q.weight": torch.randn(4, 7)}, folder / "2.safetensors")
    return folder


def test_merged_tensors_equal_the_float64_product_and_others_pass_through() -> None:
    torch.manual_seed(1)
    tensors = {
        "a.q.weight": torch.randn(5, 7).bfloat16(),
        "a.norm": torch.ones(3),
        "b.q.weight": torch.randn(4, 7),
    }
    adapter = {}
    for layer, rows in (("a.q", 5), ("b.q", 4)):
        adapter[f"base_model.model.{layer}.lora_A.weight"] = torch.randn(2, 7)
        adapter[f"base_model.model.{layer}.lora_B.weight"] = torch.randn(rows, 2)
    found = dict(merged(tensors.items(), adapter, SCALES))
    assert list(found) == list(tensors)
    assert found["a.norm"] is tensors["a.norm"]
    for name, scale in SCALES.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        up, down = (adapter[f"{layer}.lora_{half}.weight"].double() for half in "BA")
        want = tensors[name].double() + scale * (up @ down)
        assert found[name].dtype == torch.float32
        assert torch.allclose(found[name].double(), want, rtol=1e-6, atol=1e-6)


def test_facts_list_what_base_and_adapter_make_together(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "version"
    facts = adapter_facts(base, SCALES, folder)
    assert facts["tensors"] == {
        "a.q.weight": ("F32", (5, 7)),  # merged in float32, whatever the base's dtype
        "a.norm": ("F32", (3,)),
        "b.q.weight": ("F32", (4, 7)),
    }
    assert sorted(facts["files"]) == ["1.safetensors", "2.safetensors"]
    folder.mkdir()
    assert adapter_in(folder) is None
    write_manifest(folder, {"run_id": "r", ADAPTER: facts})
    found = adapter_in(folder)
    assert found is not None
    check_base(found)
    write_manifest(folder, {"run_id": "r"})
    assert adapter_in(folder) is None


def test_layer_of_another_name_than_in_the_files_is_refused(base: Path) -> None:
    with pytest.raises(RecipeError, match=r"'c.q.weight' is not a tensor of the safetensors files in"):
        adapter_facts(base, {"c.q.weight": 1.0}, base.with_name("version"))


def test_base_inside_the_run_moves_with_it_and_another_stays_where_it_is(base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    inside, version = run / "stages" / "0-sft", run / "weights" / "v1"
    inside.parent.mkdir(parents=True)
    version.mkdir(parents=True)
    shutil.copytree(base, inside)
    for where in (inside, base):
        write_manifest(version, {ADAPTER: adapter_facts(where, SCALES, version)})
        run.rename(tmp_path / "moved")
        found = adapter_in(tmp_path / "moved" / "weights" / "v1")
        (tmp_path / "moved").rename(run)
        assert found is not None
        assert found["base"] == str(base if where == base else tmp_path / "moved" / "stages" / "0-sft")


def test_base_that_is_damaged_or_gone_is_named(base: Path) -> None:
    version = base.with_name("version")
    facts = manifest_adapter({ADAPTER: adapter_facts(base, SCALES, version)}, version)
    assert facts is not None
    check_base(facts)
    file = base / "2.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(IntegrityError, match=r"2\.safetensors is not the file that the published adapter"):
        check_base(facts)
    file.unlink()
    with pytest.raises(MissingFileError, match=r"2\.safetensors, .* every machine with an explorer"):
        check_base(facts)
