"""LoRA: what is published merges as PEFT merges it, and a run with an adapter resumes exactly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from rft_data.core.errors import IntegrityError, RecipeError
from rft_data.core.files import write_manifest
from rft_data.core.protocols import LeasedBatch
from rft_data.weights.adapter import ADAPTER, ADAPTER_FILE, adapter_in, manifest_adapter
from rft_data.weights.adapter import merged as merged_tensors
from rft_data.weights.probe import PROBE_FILE, Probe
from trainers.models.adapters import adapter_scales, lora_config, merged, merged_model, write_adapter
from trainers.models.weights import _logprobs, load_model, publishable
from trainers.policy.grpo import GrpoTrainer
from trainers.policy.plan import GrpoPlan, Limits

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
    state = merged(model.state_dict(), adapter_scales(model))
    assert sorted(state) == ["norm.bias", "norm.weight", "proj.bias", "proj.weight"]
    x = torch.randn(7, 6)
    want = model.base_model.model.proj(x)
    got = torch.nn.functional.linear(x, state["proj.weight"], state["proj.bias"])
    assert torch.allclose(got, want, atol=1e-6)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_model_without_an_adapter_is_left_as_it_is() -> None:
    model = torch.nn.Linear(2, 2)
    assert merged_model(model) == (model, None)


def test_adapter_on_a_layer_that_is_not_linear_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'base_model.model.proj' is a Embedding; only linear layers"):
        adapter_scales(_peft_like(torch.nn.Embedding(6, 5)))


def test_lora_beside_a_teacher_is_refused() -> None:
    with pytest.raises(RecipeError, match="'lora' and 'teacher'"):
        lora_config(LORA, "some/model")
    assert lora_config(None, None) is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"use_dora": True}, "one product of matrices"),
        ({"bias": "all"}, "the start model without its adapter"),
        ({"init_lora_weights": "pissa"}, "the start model without its adapter"),
        ({"rank": 4}, "not an option"),
    ],
)
def test_option_that_cannot_be_published_is_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        lora_config({**LORA, **bad}, None)


def _trainer(model_path: Path, out: Path, lora: dict[str, Any] = LORA, **kwargs: Any) -> GrpoTrainer:
    options = {"learning_rate": 1e-2, "beta": 0.1}
    limits = Limits(threads=1)
    plan = GrpoPlan(model_path, out, 4, 8, options, 0, objective={"lora": lora}, limits=limits, **kwargs)
    return GrpoTrainer(plan)


def _published(trainer: GrpoTrainer, folder: Path) -> Path:
    """A version's folder, as the trainer's role makes it."""
    folder.mkdir()
    write_manifest(folder, {"run_id": "run", "version": 0, "step": 0, **trainer.save_weights(folder)})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["qproj"], "GRPOTrainer refuses its options: .*qproj.* 'trl' or 'lora'"),
        (["lm_head"], "GRPOTrainer refuses its options: .*lm_head.* 'trl' or 'lora'"),
        (["embed_tokens"], "is a Embedding; only linear layers can be merged"),
    ],
)
def test_layers_that_cannot_have_an_adapter_are_one_clear_error(
    model_path: Path, tmp_path: Path, targets: list[str], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        _trainer(model_path, tmp_path, {**LORA, "target_modules": targets})


@pytest.mark.slow
def test_version_of_a_model_in_bfloat16_is_proved_by_engines_in_float32(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    options = {"learning_rate": 1e-2, "model_init_kwargs": {"dtype": "bfloat16"}}
    limits = Limits(threads=1)
    plan = GrpoPlan(model_path, tmp_path / "run", 4, 8, options, 0, objective={"lora": LORA}, limits=limits)
    trainer = GrpoTrainer(plan)
    with closing(trainer):
        trainer.step(leased(rows_table(0, 8), 0))
        version = _published(trainer, tmp_path / "v")
    whole = tmp_path / "whole"
    whole.mkdir()
    publishable(version, whole)
    model = AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32).eval()
    probe = Probe.load(version)
    assert probe.check([_logprobs(model, ids) for ids in probe.token_ids], 1e-5, "float32") <= 1e-5


def _adapter(trainer: GrpoTrainer, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(_published(trainer, folder) / ADAPTER_FILE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lora",
    [LORA, {**LORA, "use_rslora": True, "rank_pattern": {"v_proj": 2}, "alpha_pattern": {"q_proj": 3}}],
    ids=["plain", "patterns"],
)
def test_version_is_the_adapter_alone_and_merges_as_peft_does(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased, lora: dict[str, Any]
) -> None:
    from peft import PeftModel

    with closing(_trainer(model_path, tmp_path / "run", lora)) as trainer:
        assert "kl" in trainer.step(leased(rows_table(0, 8), 0))
        trainer.step(leased(rows_table(1, 8), 1))
        version = _published(trainer, tmp_path / "v")
    files = {str(path.relative_to(version)) for path in version.rglob("*") if path.is_file()}
    assert files == {"adapter_config.json", ADAPTER_FILE, PROBE_FILE, "manifest.json"}
    base = load_model(model_path)
    loaded = PeftModel.from_pretrained(base, version).eval()
    probe = Probe.load(version)
    measured = [_logprobs(loaded.get_base_model(), ids) for ids in probe.token_ids]
    assert probe.check(measured, 1e-5, "PEFT") <= 1e-5

    adapter = adapter_in(version)
    assert adapter is not None
    assert adapter["base"] == loaded.peft_config["default"].base_model_name_or_path == str(model_path)
    want = dict(loaded.merge_and_unload().named_parameters())
    files_of_base = load_file(model_path / "model.safetensors")
    got = dict(merged_tensors(files_of_base.items(), load_file(version / ADAPTER_FILE), adapter["scales"]))
    assert got.keys() == files_of_base.keys() == adapter["tensors"].keys()
    assert all(float((got[name] - want[name]).abs().max()) <= 1e-6 for name in got)
    changed = {name for name in got if not torch.equal(got[name], files_of_base[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "v_proj"}


@pytest.mark.slow
def test_published_adapter_is_made_whole_again_for_transformers_alone(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    with closing(_trainer(model_path, tmp_path / "run")) as trainer:
        trainer.step(leased(rows_table(0, 8), 0))
        version = _published(trainer, tmp_path / "v")
    whole = tmp_path / "whole"
    whole.mkdir()
    publishable(version, whole)
    model = AutoModelForCausalLM.from_pretrained(whole).eval()
    assert len(AutoTokenizer.from_pretrained(whole)) == len(AutoTokenizer.from_pretrained(model_path))
    probe = Probe.load(version)
    assert probe.check([_logprobs(model, ids) for ids in probe.token_ids], 1e-5, "transformers") <= 1e-5
    (version / ADAPTER_FILE).write_bytes(b"cut off")
    with pytest.raises(IntegrityError, match="does not match the digest"):
        publishable(version, whole)


@pytest.mark.slow
def test_sharded_state_gives_the_same_version_as_a_whole_model(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    """Under FSDP2 rank 0 is given the trained tensors, and the probe is made of the files."""
    with closing(_trainer(model_path, tmp_path / "run")) as trainer:
        trainer.step(leased(rows_table(0, 8), 0))
        version = _published(trainer, tmp_path / "v")
        model = trainer._trainer.model
        state = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        gathered = tmp_path / "gathered"
        gathered.mkdir()
        facts = write_adapter(model, model_path, trainer.tokenizer, gathered, state)
    want = {**(adapter_in(version) or {}), "tensors": facts[ADAPTER]["tensors"]}
    assert manifest_adapter(facts, gathered) == want
    assert (gathered / ADAPTER_FILE).read_bytes() == (version / ADAPTER_FILE).read_bytes()
    found = Probe.load(gathered)
    assert Probe.load(version).check(found.logprobs, 1e-5, "gathered") <= 1e-5


@pytest.mark.slow
def test_adapter_resumes_bit_for_bit(
    model_path: Path, tmp_path: Path, rows_table: Rows, leased: Leased
) -> None:
    batches = [leased(rows_table(seed, 8), seed) for seed in range(3)]
    with closing(_trainer(model_path, tmp_path / "straight")) as straight:
        for batch in batches:
            straight.step(batch)
        want = _adapter(straight, tmp_path / "want")
    with closing(_trainer(model_path, tmp_path / "parts")) as first:
        first.step(batches[0])
        first.step(batches[1], checkpoint=True)
        at_checkpoint = _adapter(first, tmp_path / "at")
        checkpoint = first.checkpoint_dir(2)
    with closing(_trainer(model_path, tmp_path / "parts", resume_from=checkpoint)) as second:
        resumed = _adapter(second, tmp_path / "resumed")
        second.step(batches[2])
        got = _adapter(second, tmp_path / "got")
    assert all(torch.equal(resumed[name], at_checkpoint[name]) for name in resumed)
    assert all(torch.equal(got[name], want[name]) for name in want)
