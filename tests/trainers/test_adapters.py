"""LoRA: the merged weights are the base's plus the product, and a run with an adapter resumes exactly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from rft_data.errors import MissingExtraError, RecipeError
from rft_data.probe import Probe
from rft_data.protocols import LeasedBatch
from trainers.adapters import lora_config, merged, merged_model, scales_of
from trainers.grpo import GrpoTrainer, Limits

Rows = Callable[..., pa.Table]
Leased = Callable[[pa.Table, int], LeasedBatch]

LORA = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0}


class _Adapted(torch.nn.Module):
    """A layer as PEFT leaves it: the old one inside, two matrices beside it."""

    def __init__(self, layer: torch.nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(6, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, 5, bias=False)})
        self.scaling = {"default": scale}

    def get_base_layer(self) -> torch.nn.Module:
        return self.base_layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = self.lora_A["default"](x)
        return self.base_layer(x) + self.scaling["default"] * self.lora_B["default"](low)


def _peft_like(layer: torch.nn.Module) -> torch.nn.Module:
    model = torch.nn.Module()
    model.base_model = torch.nn.Module()
    model.base_model.model = torch.nn.Module()
    model.base_model.model.proj = _Adapted(layer, rank=2, scale=1.5)
    model.base_model.model.norm = torch.nn.LayerNorm(5)
    return model


def test_merged_weights_compute_what_the_adapted_layer_computes() -> None:
    torch.manual_seed(0)
    model = _peft_like(torch.nn.Linear(6, 5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = merged(model.state_dict(), scales_of(model))
    assert sorted(state) == ["norm.bias", "norm.weight", "proj.bias", "proj.weight"]
    x = torch.randn(7, 6)
    want = model.base_model.model.proj(x)
    got = torch.nn.functional.linear(x, state["proj.weight"], state["proj.bias"])
    assert torch.allclose(got, want, atol=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_model_without_an_adapter_is_left_as_it_is() -> None:
    model = torch.nn.Linear(2, 2)
    assert merged_model(model, None) == (model, None)


def test_adapter_on_a_layer_that_is_not_linear_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'base_model.model.proj' is a Embedding; only linear layers"):
        scales_of(_peft_like(torch.nn.Embedding(6, 5)))


def test_lora_beside_a_teacher_is_refused() -> None:
    with pytest.raises(RecipeError, match="'lora' and 'teacher'"):
        lora_config({"lora": LORA, "reference": "some/model"})
    assert lora_config({"lora": None}) is None


def _has_peft() -> bool:
    try:
        lora_config({"lora": LORA})
    except MissingExtraError:
        return False
    return True


needs_peft = pytest.mark.skipif(not _has_peft(), reason="needs the package peft")


@pytest.mark.skipif(_has_peft(), reason="peft is installed")
def test_lora_without_peft_names_the_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"rft-data\[train\]"):
        lora_config({"lora": LORA})


@needs_peft
@pytest.mark.parametrize(
    ("bad", "message"), [({"use_dora": True}, "one product of matrices"), ({"rank": 4}, "not an option")]
)
def test_option_that_cannot_be_published_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        lora_config({"lora": {**LORA, **bad}})


def _trainer(model_path: Path, out: Path, **kwargs: Any) -> GrpoTrainer:
    options = {"learning_rate": 1e-2, "beta": 0.1}
    return GrpoTrainer(
        model_path, out, 4, 8, options, 0, objective={"lora": LORA}, limits=Limits(threads=1), **kwargs
    )


def _weights(trainer: GrpoTrainer, folder: Path) -> dict[str, torch.Tensor]:
    folder.mkdir()
    trainer.save_weights(folder)
    return load_file(folder / "model.safetensors")


@needs_peft
def test_published_weights_are_the_base_models_with_the_adapter_merged_in(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    with closing(_trainer(model_path, tmp_path / "run")) as trainer:
        assert "kl" in trainer.step(leased(rows_table(0, 8), 0))
        trainer.step(leased(rows_table(1, 8), 1))
        got = _weights(trainer, tmp_path / "w")
        merged_by_peft = trainer._trainer.model.merge_and_unload()
        want = dict(merged_by_peft.named_parameters())
    base = load_file(model_path / "model.safetensors")
    assert got.keys() == base.keys()
    changed = {name for name in got if not torch.equal(got[name], base[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "v_proj"}
    assert all(torch.allclose(got[name], want[name].detach(), atol=1e-6) for name in changed)
    assert len(Probe.load(tmp_path / "w").token_ids) > 0


@needs_peft
def test_adapter_resumes_bit_for_bit(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    batches = [leased(rows_table(seed, 8), seed) for seed in range(3)]
    with closing(_trainer(model_path, tmp_path / "straight")) as straight:
        for batch in batches:
            straight.step(batch)
        want = _weights(straight, tmp_path / "want")
    with closing(_trainer(model_path, tmp_path / "parts")) as first:
        first.step(batches[0])
        first.step(batches[1], checkpoint=True)
        at_checkpoint = _weights(first, tmp_path / "at")
        checkpoint = first.checkpoint_dir(2)
    with closing(_trainer(model_path, tmp_path / "parts", resume_from=checkpoint)) as second:
        resumed = _weights(second, tmp_path / "resumed")
        second.step(batches[2])
        got = _weights(second, tmp_path / "got")
    assert all(torch.equal(resumed[name], at_checkpoint[name]) for name in resumed)
    assert all(torch.equal(got[name], want[name]) for name in want)
