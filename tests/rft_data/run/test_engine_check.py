"""Options that an engine refuses, and GPUs that are not here, before a run."""

from pathlib import Path

import pytest

from rft_data.recipe import load_recipe
from rft_data.recipe.leaves import dotted
from rft_data.recipe.modes import ExplorerRecipe
from rft_data.run.engine_check import engine_problems, gpu_problems
from tests.rft_data.run.test_online import write_recipe

ELSEWHERE = "placement={use: ray, explorers: {gpus: 1}}"


def with_options(root: Path, engine: str, options: str, *overrides: str) -> ExplorerRecipe:
    found = load_recipe(write_recipe(root, engine), [f"explorer.engine.options={{{options}}}", *overrides])
    assert isinstance(found, ExplorerRecipe)
    return found


def told(recipe: ExplorerRecipe) -> dict[str, str]:
    return {dotted(one.loc).removeprefix("explorer.engine."): one.message for one in engine_problems(recipe)}


@pytest.mark.heavy
def test_every_option_that_vllm_refuses_is_named(tmp_path: Path) -> None:
    wrong = (
        "dtype: nope, max_num_seqs: -1, gpu_memory_utilization: abc, block_size: 3, quantization: nope, "
        "load_format: nope, enforce_eager: true"
    )
    found = told(with_options(tmp_path, "vllm", wrong))
    assert sorted(found) == sorted(
        f"options.{one.split(':')[0].strip()}" for one in wrong.split(",") if "enforce" not in one
    )
    assert found["options.max_num_seqs"] == "vLLM refuses -1: Input should be greater than or equal to 1"
    assert "Input should be 'auto', 'half'" in found["options.dtype"]
    assert "Unknown quantization method: nope" in found["options.quantization"]
    assert "No common block size for 3" in found["options.block_size"]


@pytest.mark.heavy
def test_options_that_vllm_takes_are_not_refused(tmp_path: Path) -> None:
    # each of both would be refused with the other's default
    assert told(with_options(tmp_path, "vllm", "max_num_batched_tokens: 64, max_num_seqs: 8")) == {}


@pytest.mark.heavy
def test_of_an_engine_elsewhere_only_what_vllm_never_takes_is_told(tmp_path: Path) -> None:
    options = "quantization: fp8, max_num_seqs: abc"
    assert sorted(told(with_options(tmp_path, "vllm", options))) == [
        "options.max_num_seqs",
        "options.quantization",
    ]
    assert list(told(with_options(tmp_path, "vllm", options, ELSEWHERE))) == ["options.max_num_seqs"]


@pytest.mark.heavy
def test_a_wrong_option_of_a_routed_engine_is_at_its_place(tmp_path: Path) -> None:
    engines = "engines: [{use: transformers}, {use: vllm, options: {dtype: nope}}]"
    assert list(told(with_options(tmp_path, "routed", engines))) == ["options.engines.1.options.dtype"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("dtype: nope", "it is 'nope'; give float32"),
        ("dtype: int8", "it is 'int8'; give float32"),
        ("device: gpu7", "it is 'gpu7'; give cpu or cuda:0"),
        ("max_num_seqs: 0", "it is 0; give a whole number"),
        ("max_num_seqs: abc", "it is 'abc'; give a whole number"),
        ('device: "cuda:1"', "it is 'cuda:1', and the explorer sees no GPUs"),
        ("dtype: bfloat16, device: cpu, max_num_seqs: 4", ""),
    ],
)
def test_options_that_the_transformers_engine_refuses_are_named(
    tmp_path: Path, options: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = told(with_options(tmp_path, "transformers", options))
    assert len(found) == bool(said), found
    assert all(one.startswith(said) for one in found.values()), found


@pytest.mark.parametrize(
    ("placement", "seen", "places"),
    [
        ("use: local, explorers: {gpus: 1}", "", ["placement.explorers.gpus"]),
        ("use: local, trainer: {gpus: 1}", "", ["placement.trainer.gpus"]),
        ("use: local, explorers: {gpus: 1}, trainer: {gpus: 1}", "0,1", []),
        ("use: local, colocate: true, explorers: {gpus: 1}, trainer: {gpus: 1}", "0", []),
        ("use: ray, explorers: {gpus: 1}, trainer: {gpus: 8}", "", []),
        ("use: local", "", []),
    ],
)
def test_gpus_that_this_machine_does_not_have_are_told(
    tmp_path: Path, placement: str, seen: str, places: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    recipe = with_options(tmp_path, "vllm", "", f"placement={{{placement}}}")
    assert [dotted(one.loc) for one in gpu_problems(recipe)] == places


def test_a_reward_model_on_a_gpu_that_is_not_here_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    reward = "explorer.reward=[{use: reward_model, args: {model: x, device: 'cuda:1'}}]"
    found = list(gpu_problems(with_options(tmp_path, "vllm", "", reward)))
    assert [dotted(one.loc) for one in found] == ["explorer.reward.0.args.device"]
