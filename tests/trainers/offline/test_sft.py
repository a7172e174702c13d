"""SFT on stored and on expert rows: labels, first loss by hand, the written model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
from trl import SFTConfig, SFTTrainer

from rft_data.core.codec import to_table
from rft_data.core.errors import RecipeError, RowError, Stopped, TrainingError
from rft_data.core.failpoints import armed
from rft_data.core.rows import Experience
from rft_data.core.schema import EXPERIENCES
from trainers.offline import stage_checkpoints
from trainers.offline.sft import sft_dataset, train_sft
from trainers.offline.steps_taken import ask_to_stop, forget_steps, numbers_since, steps_taken

Rows = Callable[..., pa.Table]

CHAT = ({"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"})
OPTIONS = {"learning_rate": 1e-2, "max_steps": 4, "per_device_train_batch_size": 6}


def experience(name: str, **values: Any) -> Experience:
    return Experience(name, "expert", "run", "math", "task", "group", **values)


@pytest.fixture
def table() -> pa.Table:
    """Sampled, expert, sampled (two turns), expert: six rows in turn."""
    sampled = experience("s", token_ids=[7, 8, 9, 10, 11], prompt_length=2, action_mask=[0, 0, 1, 1, 1])
    turns = experience(
        "t", token_ids=list(range(20, 29)), prompt_length=3, action_mask=[0, 0, 0, 1, 1, 0, 0, 1, 1]
    )
    expert = experience("e", messages=CHAT)
    return to_table([sampled, expert, turns, expert, sampled, turns], EXPERIENCES)


def test_dataset_labels_only_what_was_sampled_and_keeps_order(model_path: Path, table: pa.Table) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    rows = list(sft_dataset(table, tokenizer))
    assert len(rows) == 6
    assert rows[0] == {"input_ids": [7, 8, 9, 10, 11], "labels": [-100, -100, 9, 10, 11]}
    assert rows[2]["labels"] == [-100, -100, -100, 23, 24, -100, -100, 27, 28]
    assert rows[4] == rows[0]
    assert rows[3] == rows[1]
    answer = [i for i in rows[1]["labels"] if i != -100]
    assert tokenizer.decode(answer) == "5" + tokenizer.eos_token
    whole = tokenizer.apply_chat_template(list(CHAT), tokenize=False)
    assert tokenizer.decode(rows[1]["input_ids"]) == whole
    assert rows[1]["input_ids"][-len(answer) :] == answer


@pytest.mark.parametrize(("start", "length"), [(2, 3), (4, 2), (3, 1)], ids=["mixed", "sampled", "expert"])
def test_dataset_reads_a_slice_of_a_larger_table(
    model_path: Path, table: pa.Table, start: int, length: int
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    every = list(sft_dataset(table, tokenizer))
    assert list(sft_dataset(table.slice(start, length), tokenizer)) == every[start : start + length]


def hand_loss(model_path: Path, rows: list[dict[str, list[int]]]) -> float:
    """Mean negative log probability of the labels, a token at a time in float64."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    losses = []
    for row in rows:
        logprobs = model(torch.tensor([row["input_ids"]])).logits[0].log_softmax(-1).detach()
        losses += [-float(logprobs[t - 1, i]) for t, i in enumerate(row["labels"]) if i != -100]
    return sum(losses) / len(losses)


@pytest.mark.slow
def test_first_loss_equals_the_hand_loss_and_falls(model_path: Path, tmp_path: Path, table: pa.Table) -> None:
    rows = list(sft_dataset(table, AutoTokenizer.from_pretrained(model_path)))
    metrics = train_sft(model_path, table, tmp_path, options=OPTIONS, seed=0).metrics
    assert steps_taken(tmp_path) == (4, 4)
    written = numbers_since(tmp_path, 0)[0]
    assert [one["step"] for one in written] == [1.0, 2.0, 3.0, 4.0]
    assert written[0]["loss"] == metrics["loss_first"]
    assert metrics["loss_first"] == pytest.approx(hand_loss(model_path, rows), rel=1e-6)
    assert metrics["loss_last"] < metrics["loss_first"]
    assert metrics["steps"] == 4.0
    assert metrics["wall_s"] > 0
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.slow
def test_first_update_equals_stock_trl_on_the_same_conversations(model_path: Path, tmp_path: Path) -> None:
    texts = [("2+3=", "The sum is 5."), ("Name a tree.", "Oak, or elm."), ("x + 4 = 9, x?", "5")]
    rows = [
        {
            "prompt": [{"role": "user", "content": prompt}],
            "completion": [{"role": "assistant", "content": answer}],
        }
        for prompt, answer in texts
    ]
    stored = [experience(f"e{i}", messages=(*r["prompt"], *r["completion"])) for i, r in enumerate(rows)]
    options = {
        "learning_rate": 1e-2,
        "max_steps": 1,
        "optim": "sgd",
        "per_device_train_batch_size": 3,
        "max_grad_norm": 0.0,
    }
    train_sft(model_path, to_table(stored, EXPERIENCES), tmp_path / "ours", options=options, seed=0)
    stock = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32),
        args=SFTConfig(
            str(tmp_path / "stock"),
            seed=0,
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            **options,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(model_path),
    )
    stock.train()
    start = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    after = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").state_dict()
    wanted = stock.model.state_dict()
    moved = max(float((wanted[name] - start[name]).abs().max()) for name in start)
    assert moved > 1e-6
    for name in start:
        assert torch.allclose(after[name], wanted[name], rtol=0, atol=1e-6 * moved)


def test_every_answer_after_the_prompt_is_imitated_in_text_of_many_turns(model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    messages = (*CHAT, {"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"})
    for split, text in ((1, "5<|eos|>yes<|eos|>"), (3, "yes<|eos|>")):
        row = experience("m", messages=messages, prompt_messages=split)
        [found] = sft_dataset(to_table([row], EXPERIENCES), tokenizer)
        assert tokenizer.decode([i for i in found["labels"] if i != -100]) == text


@pytest.mark.slow
def test_trained_model_loads_from_the_output_folder(
    model_path: Path, tmp_path: Path, table: pa.Table
) -> None:
    train_sft(model_path, table, tmp_path, options=OPTIONS, seed=0)
    before = AutoModelForCausalLM.from_pretrained(model_path).get_input_embeddings().weight
    after = AutoModelForCausalLM.from_pretrained(tmp_path).get_input_embeddings().weight
    assert not torch.equal(before, after)
    assert (
        AutoTokenizer.from_pretrained(tmp_path).chat_template
        == AutoTokenizer.from_pretrained(model_path).chat_template
    )


@pytest.mark.slow
def test_long_rows_are_not_cut(model_path: Path, tmp_path: Path) -> None:
    ids = [5 + i % 90 for i in range(1100)]
    row = experience("long", token_ids=ids, prompt_length=1090, action_mask=[0] * 1090 + [1] * 10)
    metrics = train_sft(model_path, to_table([row], EXPERIENCES), tmp_path, options={"max_steps": 1}, seed=0)
    whole = {"input_ids": ids, "labels": [-100] * 1090 + ids[1090:]}
    assert metrics.metrics["loss_first"] == pytest.approx(hand_loss(model_path, [whole]), rel=1e-6)


@pytest.mark.parametrize(
    ("messages", "message"),
    [((), "'bad' has no token_ids and its messages do not end"), (CHAT[:1], "'bad' has no token_ids")],
)
def test_row_without_an_answer_is_named(model_path: Path, messages: Any, message: str) -> None:
    with pytest.raises(RowError, match=message):
        sft_dataset(
            to_table([experience("bad", messages=messages)], EXPERIENCES),
            AutoTokenizer.from_pretrained(model_path),
        )


def test_row_with_a_mask_of_another_length_is_refused(model_path: Path) -> None:
    row = experience("bad", token_ids=[1, 2, 3], action_mask=[0, 1])
    with pytest.raises(RowError, match="action_mask is missing or differs in length"):
        sft_dataset(to_table([row], EXPERIENCES), AutoTokenizer.from_pretrained(model_path))


def test_no_rows_unknown_and_owned_options_are_refused(
    model_path: Path, tmp_path: Path, table: pa.Table
) -> None:
    with pytest.raises(TrainingError, match="there is no experience to train on"):
        train_sft(model_path, EXPERIENCES.empty_table(), tmp_path, options={}, seed=0)
    with pytest.raises(
        RecipeError, match="'max_lenght' is not an option of TRL's SFTConfig; did you mean 'max_length'"
    ):
        train_sft(model_path, table, tmp_path, options={"max_lenght": 3}, seed=0)
    with pytest.raises(RecipeError, match="'completion_only_loss' cannot be set here: rows come tokenised"):
        train_sft(model_path, table, tmp_path, options={"completion_only_loss": True}, seed=0)


@pytest.mark.slow
def test_loss_that_is_not_finite_writes_no_model(model_path: Path, tmp_path: Path, table: pa.Table) -> None:
    options = {**OPTIONS, "learning_rate": 1e30, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    with pytest.raises(
        TrainingError, match=r"optimizer step \d: the gradient norm is (nan|inf).*No model is written"
    ):
        train_sft(model_path, table, tmp_path, options=options, seed=0)
    assert not (tmp_path / "model.safetensors").exists()


def test_messages_column_is_json_as_the_schema_stores_it() -> None:
    stored = to_table([experience("e", messages=CHAT)], EXPERIENCES).column("messages")[0].as_py()
    assert stored == json.dumps([dict(m) for m in CHAT], separators=(",", ":"))


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"r": 4, "target_modules": "all-linear"}], ids=["whole", "adapter"])
def test_a_stage_that_dies_goes_on_from_its_checkpoint_with_the_same_weights(
    model_path: Path, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: dict | None
) -> None:
    monkeypatch.setattr(stage_checkpoints, "EVERY_S", 0.0)
    monkeypatch.setattr(stage_checkpoints, "_COST", 0)
    options = {**OPTIONS, "per_device_train_batch_size": 2}  # batches are drawn anew in the second epoch
    straight = train_sft(model_path, table, tmp_path / "straight", options=options, seed=3, lora=lora)
    with armed("stage.step", 4), pytest.raises(OSError, match=r"stage\.step"):
        train_sft(model_path, table, tmp_path / "broken", options=options, seed=3, lora=lora)
    beside = tmp_path / "broken.checkpoints"
    assert [folder.name for folder in beside.glob("checkpoint-*")] == ["checkpoint-3"]
    with armed("stage.step", 99) as counted:
        resumed = train_sft(model_path, table, tmp_path / "broken", options=options, seed=3, lora=lora)
    assert counted.passes == 1, "only the fourth step was left to take"
    assert resumed.history == straight.history
    assert not beside.exists()
    assert_same_weights(tmp_path / "straight", tmp_path / "broken")


@pytest.mark.slow
def test_a_stage_that_is_asked_to_stop_ends_with_a_checkpoint_and_goes_on_from_it(
    model_path: Path, table: pa.Table, tmp_path: Path
) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stages" / "stopped"
    train_sft(model_path, table, straight, options=OPTIONS, seed=3)
    ask_to_stop(stopped)  # before there is a folder of stages
    with pytest.raises(Stopped, match="stopped at optimizer step 1 of 4, as asked"):
        train_sft(model_path, table, stopped, options=OPTIONS, seed=3)
    assert not (stopped / "model.safetensors").exists()
    forget_steps(stopped)
    with armed("stage.step", 99) as counted:
        train_sft(model_path, table, stopped, options=OPTIONS, seed=3)
    assert counted.passes == 3
    assert_same_weights(straight, stopped)


def assert_same_weights(one: Path, other: Path) -> None:
    found, wanted = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in found)


@pytest.mark.slow
def test_a_checkpoint_of_other_examples_is_not_gone_on_from(
    model_path: Path, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_checkpoints, "EVERY_S", 0.0)
    with armed("stage.step", 3), pytest.raises(OSError, match=r"stage\.step"):
        train_sft(model_path, table, tmp_path / "out", options=OPTIONS, seed=3)
    with armed("stage.step", 99) as counted:
        train_sft(model_path, table.slice(1), tmp_path / "out", options=OPTIONS, seed=3)
    assert counted.passes == 4


@pytest.fixture
def numbered(model_path: Path, tmp_path: Path) -> Path:
    """A model with 64 learned positions."""
    folder = tmp_path / "gpt2"
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=1, n_head=1)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


LONG = to_table(
    [
        experience(f"{size}", token_ids=[7] * size, prompt_length=1, action_mask=[1] * size)
        for size in (64, 70)
    ],
    EXPERIENCES,
)


def test_rows_beyond_a_models_positions_are_refused_before_training(numbered: Path, tmp_path: Path) -> None:
    said = r"1 rows have more tokens \(up to 70\) than .* has positions \(64\); give .*max_length: 64"
    for options in (OPTIONS, {**OPTIONS, "max_length": 65}):
        with pytest.raises(TrainingError, match=said):
            train_sft(numbered, LONG, tmp_path / "out", options=options, seed=0)


@pytest.mark.heavy
def test_rows_that_are_cut_to_a_models_positions_are_trained_on(numbered: Path, tmp_path: Path) -> None:
    options = {**OPTIONS, "max_length": 64, "max_steps": 1}
    assert train_sft(numbered, LONG, tmp_path / "out", options=options, seed=0).metrics["steps"] == 1
