"""Which stored rows and pairs are trained on, as which tokens, in which batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, RowError, TrainingError
from rft_data.core.heldout import prompt_share
from rft_data.core.images import image_part
from rft_data.core.rows import Experience, Feedback, Message, PreferencePair, Task, TaskKey, experience_id_of
from rft_data.exchange.formats.records import PLAIN
from tests.jsonl import jsonl_tasks
from tests.trainers.offline import preference_reference as reference
from trainers.models.weights import load_tokenizer
from trainers.offline.answers import Answer, rendered_answer, stored_answers
from trainers.offline.heldout_prompts import HeldoutPrompts
from trainers.offline.offline_stage import StageInput, pair_tokens, run_stage
from trainers.offline.preference_data import KtoBatches, PairBatches, kto_dataset, kto_order, pair_dataset
from trainers.offline.stored_pairs import PairChoice, chosen_pairs
from trainers.offline.stored_rows import RowChoice, chosen_rows

USER = {"role": "user", "content": "2+3?"}
GOOD, BAD = {"role": "assistant", "content": "5"}, {"role": "assistant", "content": "6"}


def row(group: int, member: int, reward: float | None, **changes: Any) -> Experience:
    """A short rollout: its prompt names the group, its answer the member."""
    task = TaskKey("t", f"task{group}")
    prompt = {"role": "user", "content": f"{group}+1?"}
    values = {
        "source": "rollout",
        "run_id": "a",
        "messages": (prompt, {"role": "assistant", "content": f"{member}"}),
        "prompt_messages": 1,
        "token_ids": [5, 6, 10 + group, 20 + member, 1],
        "prompt_length": 3,
        "action_mask": [0, 0, 0, 1, 1],
        "logprobs": [0.0, 0.0, 0.0, -1.0, -0.5],
        "version_min": 0,
        "version_max": 0,
        "version_spans": ((0, 3, 5),),
        "finish_reason": "stop",
        **changes,
    }
    run = str(values["run_id"])
    return Experience(
        experience_id_of(run, task, 0, f"{run}/g{group}", member),
        taskset="t",
        task_id=task.task_id,
        group_id=f"{run}/g{group}",
        member=member,
        reward=reward,
        **values,
    )


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[Buffer]:
    with Buffer(tmp_path / "buffer") as opened:
        yield opened


def members(buffer: Buffer, heldout: float = 0.0, **choice: Any) -> list[tuple[str, int]]:
    table = chosen_rows(buffer, RowChoice(**choice), heldout).table
    return list(zip(table["group_id"].to_pylist(), table["member"].to_pylist(), strict=True))


# --- rows ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rows_are_chosen_by_run_source_filter_and_reward(buffer: Buffer) -> None:
    buffer.append([row(0, 0, 1.0), row(0, 1, 0.9), row(0, 2, 0.1), row(0, 3, None)])
    buffer.append([row(1, 0, 1.0, run_id="b"), row(1, 1, 1.0, run_id="b", source="eval")])
    everything = [("a/g0", 0), ("a/g0", 1), ("a/g0", 2), ("a/g0", 3), ("b/g1", 0)]
    assert members(buffer) == everything
    assert members(buffer, run="b") == [("b/g1", 0)]
    assert members(buffer, min_reward=0.9) == [("a/g0", 0), ("a/g0", 1), ("b/g1", 0)]  # float32's 0.9 too
    assert members(buffer, where="member = 2 or reward is null") == [("a/g0", 2), ("a/g0", 3)]
    assert members(buffer, sources=["rollout", "eval"]) == everything
    found = chosen_rows(buffer, RowChoice(min_reward=0.9))
    assert found.left_out == {"the row has no reward": 1, "its reward is below 0.9": 1}
    assert found.scores.tolist() == pytest.approx([1.0, 0.9, 1.0])


@pytest.mark.slow
def test_best_of_takes_the_first_of_equal_rewards(buffer: Buffer) -> None:
    buffer.append([row(0, 0, 0.5), row(1, 0, 0.2), row(0, 1, 1.0), row(0, 2, 1.0), row(1, 1, None)])
    assert members(buffer, best_of=1) == [("a/g1", 0), ("a/g0", 1)]
    assert members(buffer, best_of=2) == [("a/g1", 0), ("a/g0", 1), ("a/g0", 2)]


@pytest.mark.slow
def test_rows_that_show_images_are_left_out_and_counted(buffer: Buffer, model_path: Path) -> None:
    shown = (image_part("0" * 32), {"type": "text", "text": "Which?"})
    asked = {"role": "user", "content": list(shown)}
    good = row(1, 0, 1.0, payloads=("0" * 32,), messages=(asked, GOOD))
    bad = row(1, 1, 0.0, payloads=("0" * 32,), messages=(asked, BAD))
    buffer.append([row(0, 0, 1.0), good, bad])
    found = chosen_rows(buffer, RowChoice())
    assert found.left_out == {"it shows images or has other payloads": 2}
    assert found.table["group_id"].to_pylist() == ["a/g0"]
    pairs = chosen_pairs(buffer, PairChoice("mined")).pairs
    with pytest.raises(TrainingError, match="its messages show images, which only policy gradients train on"):
        pair_tokens(buffer, pairs, model_path)


@pytest.mark.slow
def test_feedback_counts_before_the_reward(buffer: Buffer) -> None:
    rows = [row(0, 0, 1.0), row(0, 1, 0.0), row(0, 2, None)]
    buffer.append(rows)
    buffer.add_feedback(
        [
            Feedback(rows[0].experience_id, "me", "score", 0.0),
            Feedback(rows[2].experience_id, "me", "score", 1),
        ]
    )
    assert members(buffer, min_reward=0.5) == [("a/g0", 0)]
    assert members(buffer, min_reward=0.5, feedback="score") == [("a/g0", 2)]


@pytest.mark.slow
def test_held_out_prompts_are_in_nobodys_training_and_the_split_is_complete(buffer: Buffer) -> None:
    buffer.append([row(g, m, float(m)) for g in range(40) for m in range(2)])
    kept = {group for group, _ in members(buffer, heldout=0.3)}
    inside = chosen_pairs(buffer, PairChoice("mined"), 0.3, inside=True)
    outside = chosen_pairs(buffer, PairChoice("mined"), 0.3)
    held = {f"a/g{pair.messages[0]['content'].split('+')[0]}" for pair in inside.pairs}
    assert len(kept) + len(held) == 40
    assert 4 <= len(held) <= 20
    assert not kept & held
    assert len(inside.pairs) + len(outside.pairs) == 40
    assert outside.left_out == {"the prompt is held out": len(held)}
    with pytest.raises(TrainingError, match=r"no preference pair is held out \(40 x .* which is 1e-06"):
        chosen_pairs(buffer, PairChoice("mined"), 1e-6, inside=True)
    assert HeldoutPrompts(buffer, 0.999999).has(None, [USER])
    assert not HeldoutPrompts(buffer, 0.0).has(None, [USER])


@pytest.mark.slow
@pytest.mark.parametrize("system", [(), ({"role": "system", "content": "Be brief."},)])
def test_what_a_taskset_of_another_run_holds_out_is_left_out_by_its_messages(
    buffer: Buffer, tmp_path: Path, system: tuple[Message, ...]
) -> None:
    asked = [f"{number}+1" for number in range(40)]
    (tmp_path / "asked.jsonl").write_text(
        "".join(json.dumps({"question": q, "answer": ""}) + "\n" for q in asked)
    )
    tasks = jsonl_tasks(tmp_path / "asked.jsonl", name="first", heldout=0.3)
    buffer.add_tasks(tasks)
    held = {number for number, task in enumerate(tasks) if task.split == "heldout"}
    assert 4 <= len(held) <= 20
    shown = [(*system, {"role": "user", "content": text}) for text in asked]
    known, unknown = (
        [
            replace(
                row(
                    n,
                    m,
                    float(m),
                    run_id=run,
                    prompt_messages=len(prompt),
                    messages=(*prompt, (BAD, GOOD)[m]),
                ),
                task_id=task_id(n),
            )
            for n, prompt in enumerate(shown)
            for m in range(2)
        ]
        for run, task_id in (("known", lambda n: tasks[n].task_id), ("unknown", lambda n: f"imported-{n}"))
    )
    buffer.append([*known, *unknown])
    buffer.add_preferences(
        [PreferencePair("me", "second", f"pair-{n}", [GOOD], [BAD], messages=p) for n, p in enumerate(shown)]
    )
    expected = {f"{run}/g{n}" for run in ("known", "unknown") for n in range(40) if n not in held}
    assert {group for group, _ in members(buffer, heldout=0.3)} == expected
    for pairs in (chosen_pairs(buffer, PairChoice(kind), 0.3).pairs for kind in ("mined", "stored")):
        assert {pair.messages[-1]["content"] for pair in pairs} == {
            text for number, text in enumerate(asked) if number not in held
        }


@pytest.mark.slow
def test_rows_with_solved_examples_are_held_out_where_their_task_is(buffer: Buffer) -> None:
    tasks = [Task("sums", ({"role": "user", "content": f"{n}+{n}"},)) for n in range(40)]
    buffer.add_tasks(tasks)
    shots = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})
    rows = [
        replace(
            row(n, m, float(m), prompt_messages=3, messages=(*shots, *task.messages, (BAD, GOOD)[m])),
            task_id=task.task_id,
        )
        for n, task in enumerate(tasks)
        for m in range(2)
    ]
    buffer.append(rows)
    held = {f"a/g{n}" for n, task in enumerate(tasks) if prompt_share(task.messages) < 0.3}
    assert 4 <= len(held) <= 20
    assert {group for group, _ in members(buffer, heldout=0.3)} == {f"a/g{n}" for n in range(40)} - held
    inside = chosen_pairs(buffer, PairChoice("mined"), 0.3, inside=True).pairs
    assert {pair.task_id for pair in inside} == {tasks[int(name[3:])].task_id for name in held}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({}, "the buffer has 0 rows, 0 from rollout, import, expert. Loosen"),
        ({"run": "x", "where": "reward > 1"}, "0 of run 'x' from .* that 'reward > 1' lets through"),
    ],
)
def test_no_rows_says_what_there_is(buffer: Buffer, choice: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        chosen_rows(buffer, RowChoice(**choice))


def test_bad_filter_is_a_recipe_error(buffer: Buffer) -> None:
    with pytest.raises(RecipeError, match="rewrd"):
        chosen_rows(buffer, RowChoice(where="rewrd > 1"))


# --- pairs -----------------------------------------------------------------------------------------------


def test_stored_pairs_are_chosen_by_a_filter_over_their_own_table(buffer: Buffer) -> None:
    human = PreferencePair("human", "t", "x", [GOOD], [BAD], messages=[USER])
    other = PreferencePair("import", "t", "y", [BAD], [GOOD], messages=[USER])
    buffer.add_preferences([human, other])
    found = chosen_pairs(buffer, PairChoice(where="source = 'human'")).pairs
    assert [pair.task_id for pair in found] == ["x"]
    assert len(chosen_pairs(buffer, PairChoice()).pairs) == 2


@pytest.mark.slow
def test_no_pairs_says_what_there_is_and_what_makes_them(buffer: Buffer) -> None:
    buffer.append([row(0, 0, 1.0), row(0, 1, 1.0)])
    with pytest.raises(TrainingError, match=r"0 stored pairs and 2 experiences. Pairs are made by rft"):
        chosen_pairs(buffer, PairChoice())
    with pytest.raises(TrainingError, match=r"could be mined \(1 x no pair in the group: its rewards differ"):
        chosen_pairs(buffer, PairChoice("mined"))


@pytest.mark.slow
def test_mined_pairs_are_the_stored_ids_and_not_their_text_rendered_again(
    buffer: Buffer, model_path: Path
) -> None:
    buffer.append([row(0, 0, 1.0), row(0, 1, 0.0)])
    names = ("token_ids", "action_mask", "logprobs", "version_min", "version_max")
    untokenised = {**dict.fromkeys(names), "version_spans": (), "prompt_length": 0, "source": "import"}
    buffer.append([row(1, 0, 1.0, **untokenised), row(1, 1, 0.0)])
    pairs = chosen_pairs(buffer, PairChoice("mined")).pairs
    usable, tokens, refused = pair_tokens(buffer, pairs, model_path)
    assert [pair.task_id for pair in usable] == [pairs[0].task_id]
    # rendered, the prompt of the second is other tokens than those stored with its other answer
    assert refused == {"its answers stand behind different prompts (stored ids against rendered text)": 1}
    better, worse = tokens[0]
    assert (list(better.ids), list(better.mask)) == ([5, 6, 10, 20, 1], [0, 0, 0, 1, 1])
    assert list(worse.ids) == [5, 6, 10, 21, 1]


@pytest.mark.slow
def test_pairs_that_are_too_long_are_left_out_and_counted(buffer: Buffer, model_path: Path) -> None:
    buffer.append([row(0, 0, 1.0), row(0, 1, 0.0)])
    pairs = chosen_pairs(buffer, PairChoice("mined")).pairs
    with pytest.raises(TrainingError, match=r"none of 1 .* 1 x longer than 4 tokens \(trl.max_length"):
        pair_tokens(buffer, pairs, model_path, limit=4)


@pytest.mark.slow
def test_pairs_beyond_a_models_positions_are_refused_before_training(
    buffer: Buffer, model_path: Path, tmp_path: Path
) -> None:
    shutil.copytree(model_path, tmp_path / "model")
    config = json.loads((model_path / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({**config, "model_type": "gpt2", "max_position_embeddings": 4})
    )
    buffer.append([row(0, 0, 1.0), row(0, 1, 0.0)])
    given = StageInput(tmp_path / "model", tmp_path / "out", {}, {"pairs": "mined"}, 0, 0.0)
    for name, data in (("dpo", {"pairs": "mined"}), ("kto", {"threshold": 0.5})):
        with pytest.raises(TrainingError, match=r"2 rows have more tokens \(up to 5\) .* positions \(4\)"):
            run_stage(buffer, name, replace(given, data=data))


@pytest.mark.slow
def test_ids_of_another_tokenizer_are_refused(buffer: Buffer, model_path: Path) -> None:
    buffer.append([row(0, 0, 1.0, token_ids=[5, 6, 7, 90_000, 1]), row(0, 1, 0.0)])
    pairs = chosen_pairs(buffer, PairChoice("mined")).pairs
    with pytest.raises(RowError, match=r"token id 90000, and the model .* knows"):
        pair_tokens(buffer, pairs, model_path)


# --- tokens ----------------------------------------------------------------------------------------------


def test_only_what_the_assistant_says_after_the_prompt_counts(model_path: Path) -> None:
    tokenizer = load_tokenizer(model_path)
    messages = [USER, BAD, {"role": "user", "content": "really?"}, GOOD]
    for split, text in ((1, "6<|eos|>5<|eos|>"), (3, "5<|eos|>")):
        answer = rendered_answer(tokenizer, messages, split)
        assert tokenizer.decode(answer.ids) == tokenizer.apply_chat_template(messages, tokenize=False)
        kept = [i for i, one in zip(answer.ids, answer.mask, strict=True) if one]
        assert tokenizer.decode(kept) == text
        assert answer.mask[answer.prompt_length] == 1


def test_plain_texts_are_joined_without_a_template(model_path: Path, buffer: Buffer) -> None:
    tokenizer = load_tokenizer(model_path)
    prompt, end = {"role": "user", "content": "2+3="}, {"role": "assistant", "content": " 5"}
    answer = rendered_answer(tokenizer, [prompt, end], 1, plain=True)
    assert tokenizer.decode(answer.ids) == "2+3= 5<|eos|>"
    kept = [i for i, one in zip(answer.ids, answer.mask, strict=True) if one]
    assert tokenizer.decode(kept) == " 5<|eos|>"
    pair = PreferencePair("import", "t", "t", [end], [BAD], messages=[prompt], metadata={PLAIN: True})
    buffer.add_preferences([pair])
    _, [(better, _)], _ = pair_tokens(buffer, chosen_pairs(buffer, PairChoice()).pairs, model_path)
    assert list(better.ids) == list(answer.ids)


def test_prompt_inside_both_answers_is_what_they_share(buffer: Buffer, model_path: Path) -> None:
    buffer.add_preferences([PreferencePair("import", "t", "t", [USER, GOOD], [USER, BAD])])
    _, [(better, _)], _ = pair_tokens(buffer, chosen_pairs(buffer, PairChoice()).pairs, model_path)
    tokenizer = load_tokenizer(model_path)
    kept = [i for i, one in zip(better.ids, better.mask, strict=True) if one]
    assert tokenizer.decode(kept) == "5<|eos|>"


def test_tokenizer_without_a_template_and_talk_without_an_answer_are_refused(model_path: Path) -> None:
    tokenizer = load_tokenizer(model_path)
    with pytest.raises(RowError, match="do not end with an assistant's answer"):
        rendered_answer(tokenizer, [USER], 0)
    with pytest.raises(RowError, match="do not end with an assistant's answer"):
        rendered_answer(tokenizer, [USER, GOOD], 2)
    tokenizer.chat_template = None
    with pytest.raises(RowError, match="no chat template"):
        rendered_answer(tokenizer, [USER, GOOD], 1)


def test_stored_row_without_a_mask_is_named(buffer: Buffer) -> None:
    table = buffer.take(buffer.append([row(0, 0, 1.0)]).seqs)
    at = table.schema.get_field_index("action_mask")
    kind = table.schema.field(at)
    broken = table.set_column(at, kind, pa.array([[0, 1]], kind.type))
    with pytest.raises(RowError, match="its action_mask is missing or differs"):
        list(stored_answers(broken))


# --- batches ---------------------------------------------------------------------------------------------


def test_batches_equal_trls_own_where_every_answer_token_counts() -> None:
    made = [
        (Answer([1, 2, 3, 4], [0, 0, 1, 1], 2), Answer([1, 2, 5], [0, 0, 1], 2)),
        (Answer([7, 8], [0, 1], 1), Answer([7, 9, 9, 9, 9], [0, 1, 1, 1, 1], 1)),
    ]
    ours = PairBatches(0)(list(pair_dataset(made)))
    stock = DataCollatorForPreference(0)(
        [
            {
                "prompt_ids": list(b.ids[: b.prompt_length]),
                "chosen_ids": list(b.ids[b.prompt_length :]),
                "rejected_ids": list(w.ids[w.prompt_length :]),
            }
            for b, w in made
        ]
    )
    assert {k: v.tolist() for k, v in ours.items()} == {k: v.tolist() for k, v in stock.items()}
    answers = [made[0][0], made[1][1], made[1][0]]
    rows = list(kto_dataset(answers, [True, False, True], rotate=2))
    ours, stock = KtoBatches(0)(rows), DataCollatorForUnpairedPreference(0)(rows)
    assert {k: v.tolist() for k, v in ours.items()} == {k: v.tolist() for k, v in stock.items()}


def test_kl_answers_are_rotated_within_each_batch_with_their_masks() -> None:
    answers = reference.answers(3, 5)
    rows = list(kto_dataset(answers, [True] * 5, rotate=2))
    own = [(r["completion_ids"], r["completion_mask"]) for r in rows]
    others = [(r["KL_completion_ids"], r["KL_completion_mask"]) for r in rows]
    assert others == [own[i] for i in (1, 0, 3, 2, 4)]
    batch = KtoBatches(0)(rows[:2])
    trained = [x for x, one in zip(*own[1], strict=True) if one]
    kept = batch["KL_input_ids"][0][batch["KL_completion_mask"][0] == 1].tolist()
    assert kept == trained  # the environment's tokens in between are left out there too
    assert "KL_completion_ids" not in kto_dataset(answers, [True] * 5, rotate=None).column_names


ORDER_0, ORDER_1 = [4, 5, 2, 6, 3, 8, 7, 0, 1], [7, 0, 1, 4, 2, 5, 8, 6, 3]
"""Of nine rows, with seed 0 and 1."""


def test_kto_order_is_shuffled_and_leaves_no_row_alone_in_a_batch() -> None:
    """The orders themselves, because a resumed stage must draw those of its first start."""
    assert sorted(kto_order(8, 4, 0)) == list(range(8))
    assert kto_order(9, 1, 0) == ORDER_0
    assert kto_order(9, 4, 0) == ORDER_0[:-1]
    assert kto_order(9, 2, 1) == ORDER_1[:-1]
    assert len(kto_order(10, 4, 0)) == 10


# --- stages ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sft", "dpo", "kto", "reward_model"])
def test_stage_writes_a_model_and_what_it_was_trained_on(
    buffer: Buffer, model_path: Path, tmp_path: Path, algorithm: str
) -> None:
    rows = [row(g, m, float(m)) for g in range(3) for m in range(2)]
    buffer.append([*rows, row(3, 0, None)])
    data: dict[str, Any] = {
        "sft": {"min_reward": 1.0},
        "kto": {"threshold": 0.5},
        "dpo": {"pairs": "mined"},
        "reward_model": {"pairs": "mined"},
    }[algorithm]
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "learning_rate": 1e-3}
    output = tmp_path / "out"
    report = run_stage(buffer, algorithm, StageInput(model_path, output, options, data, 0, 0.0))
    assert report.examples == {"sft": 3, "kto": 6, "dpo": 3, "reward_model": 3}[algorithm]
    assert len(report.history) == 1
    if algorithm == "kto":
        assert report.left_out == {"the row has no reward": 1}
    named = [json.loads(line) for line in (output / "trained_on.jsonl").read_text().splitlines()]
    ids = {row.experience_id for row in rows if algorithm in ("kto",) or row.reward == 1.0}
    key = "experience_id" if algorithm in ("sft", "kto") else "chosen_experience_id"
    assert {name[key] for name in named} == ids
    assert (output / "model.safetensors").is_file()
