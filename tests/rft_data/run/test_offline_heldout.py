"""What is held out stays out of every offline stage, by the split that a taskset itself would make."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError, TrainingError
from rft_data.core.heldout import prompt_share
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.recipe import load_recipe
from rft_data.run.build import taskset_tasks
from rft_data.run.start import run_recipe
from tests.jsonl import jsonl_tasks
from tests.rft_data.run.test_offline_run import rollouts, write
from tests.rft_data.run.test_online import write_recipe as write_online


def trained_on(folder: Path) -> list[dict[str, str]]:
    """What a stage's folder says of its examples."""
    return [json.loads(line) for line in (folder / "trained_on.jsonl").read_text().splitlines()]


def answers(tasks: Sequence[Task]) -> list[Experience]:
    """A right and a wrong answer to each task, as somebody imported them; ids end in the task's own."""
    return [
        Experience(
            f"{kind}-{task.task_id}",
            source="import",
            run_id="earlier",
            taskset=task.taskset,
            task_id=task.task_id,
            group_id=f"earlier/{task.task_id}",
            member=member,
            messages=(*task.messages, {"role": "assistant", "content": said}),
            prompt_messages=1,
            completion_text=said,
            reward=1.0 - member,
        )
        for task in tasks
        for member, (kind, said) in enumerate((("right", task.answer or ""), ("wrong", "I do not know.")))
    ]


@pytest.mark.slow
def test_stages_of_a_train_command_leave_out_the_prompts_of_a_tasksets_heldout(tmp_path: Path) -> None:
    rows = rollouts(60)
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(rows)
    questions = tmp_path / "questions.jsonl"
    asked = {row.messages[0]["content"]: row for row in rows}
    questions.write_text("".join(json.dumps({"question": q, "answer": ""}) + "\n" for q in asked))
    tasks = jsonl_tasks(questions, name="sums", heldout=0.3)
    held = {task.messages[0]["content"] for task in tasks if task.split == "heldout"}
    assert 5 < len(held) < 40
    allowed = {row.experience_id for row in rows if row.messages[0]["content"] not in held}
    steps = [f"stages.{number}.trl.max_steps=1" for number in range(4)]
    summary = run_recipe(load_recipe(write(tmp_path), steps))
    right = {row.experience_id for row in rows if row.reward == 1.0}
    for name in ("0-sft", "1-dpo", "2-reward_model", "3-kto"):
        named = trained_on(tmp_path / "run" / "stages" / name)
        key = "experience_id" if name in ("0-sft", "3-kto") else "chosen_experience_id"
        assert {line[key] for line in named} == (allowed if name == "3-kto" else allowed & right)
        if key == "chosen_experience_id":
            assert {line["rejected_experience_id"] for line in named} == allowed - right
        left_out = summary["stages"][name]["left_out"]
        assert left_out["the prompt is held out"] == len(held) * (2 if name == "3-kto" else 1)


SFT_ONLY = """\
recipe: 1
name: imitation
mode: offline
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
model: {{build: {{use: tiny_qwen2, hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 16}}}}
heldout: {{fraction: 0.3}}
stages:
  - {{algorithm: sft, data: {{min_reward: 1.0}}, trl: {{max_steps: 1, per_device_train_batch_size: 2}}}}
"""


@pytest.mark.slow
def test_a_stage_of_sft_alone_leaves_out_what_is_held_out_without_any_pairs(tmp_path: Path) -> None:
    rows = [row for row in rollouts(60) if row.reward == 1.0]  # no group has a worse one
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(rows)
    path = tmp_path / "recipe.yaml"
    path.write_text(SFT_ONLY.format(root=tmp_path))
    with pytest.raises(TrainingError, match=r"'heldout' measures .*write 'measure: false'"):
        run_recipe(load_recipe(path, ["run_dir=" + str(tmp_path / "refused")]))
    summary = run_recipe(load_recipe(path, ["heldout.measure=false"]))
    held = {row.experience_id for row in rows if prompt_share(row.messages[:1]) < 0.3}
    named = {line["experience_id"] for line in trained_on(tmp_path / "run" / "stages" / "0-sft")}
    assert named == {row.experience_id for row in rows} - held
    assert summary["stages"]["0-sft"]["left_out"] == {"the prompt is held out": len(held)}
    assert (summary["preferences"], bool(held)) == ({}, True)
    with pytest.raises(RecipeError, match=r"'measure: false' measures no pairs, so nothing reads limit"):
        load_recipe(path, ["heldout.measure=false", "heldout.limit=3"])


STAGES = """\
  - algorithm: sft
    data: {run: earlier, min_reward: 1.0}
    trl: {max_steps: 1}
  - algorithm: dpo
    trl: {max_steps: 1, per_device_train_batch_size: 4}
"""


@pytest.mark.slow
def test_stages_before_exploring_leave_out_what_the_recipes_tasksets_hold_out(tmp_path: Path) -> None:
    path = write_online(tmp_path, steps=1)
    text = path.read_text()
    path.write_text(
        text[: text.index("  - algorithm: sft\n")] + STAGES + text[text.index("  - algorithm: grpo\n") :]
    )
    unfiltered = "experience_ops=[{grpo_advantage_mapper: {}}]"
    recipe = load_recipe(path, ["evaluation.limit=4", "tasks.0.source.size=60", unfiltered])
    tasks = [task for section in recipe.tasks for task in taskset_tasks(section)]
    split = {name: [t for t in tasks if t.split == name] for name in ("train", "heldout")}
    assert min(map(len, split.values())) > 5
    pairs = [
        PreferencePair(
            "human",
            "sums",
            task.task_id,
            [{"role": "assistant", "content": task.answer}],
            [{"role": "assistant", "content": "no"}],
            messages=list(task.messages),
        )
        for task in tasks
    ]
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        buffer.append(answers(tasks))
        buffer.add_preferences(pairs)
    run_recipe(recipe)
    stages = tmp_path / "run" / "stages"
    assert {line["experience_id"] for line in trained_on(stages / "0-sft")} == {
        f"right-{task.task_id}" for task in split["train"]
    }
    assert {line["preference_id"] for line in trained_on(stages / "1-dpo")} == {
        pair.preference_id for pair in pairs if pair.task_id in {t.task_id for t in split["train"]}
    }
