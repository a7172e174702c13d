"""Runs that train on stored rows: books, resume, held-out preferences, GSM8K's own solutions, hybrids."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    set_seed,
)
from typer.testing import CliRunner

from ops.runtime.pipeline import OperatorPipeline
from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.canonical import content_id
from rft_data.core.errors import MissingFileError, RecipeError, ResumeError, Stopped, TrainingError
from rft_data.core.files import read_manifest
from rft_data.core.rows import Experience, Feedback, PreferencePair, TaskKey, experience_id_of
from rft_data.core.words import RunState
from rft_data.reading.lineage import lineage
from rft_data.recipe import load_recipe
from rft_data.recipe.imports import Import
from rft_data.recipe.offline import KtoStage
from rft_data.run.imports import import_sources
from rft_data.run.record import ask_to_stop, read_record
from rft_data.run.stage_rows import require_stage_rows
from rft_data.run.start import run_recipe
from rft_data.web.report import report
from tests.gsm8k import needs_full
from tests.ops.real_rollouts import gsm8k_rollouts, gsm8k_tasks
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.test_online import write_recipe as write_online
from trainers.models.tiny_model import ASSISTANT, CHAT_TEMPLATE, END, PAD, USER
from trainers.offline.steps_taken import steps_taken
from trainers.offline.stored_rows import RowChoice, chosen_rows

RECIPE = """\
recipe: 1
name: offline
mode: offline
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
model:
  build: {{use: tiny_qwen2, hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}
heldout: {{fraction: 0.3, pairs: mined}}
stages:
  - algorithm: sft
    data: {{min_reward: 1.0}}
    trl: {{max_steps: 8, per_device_train_batch_size: 16, learning_rate: 3.0e-3}}
  - algorithm: dpo
    data: {{pairs: mined}}
    trl: {{max_steps: 12, per_device_train_batch_size: 16, learning_rate: 1.0e-3, beta: 0.1}}
  - algorithm: reward_model
    data: {{pairs: mined}}
    trl: {{max_steps: 12, per_device_train_batch_size: 16, learning_rate: 1.0e-3}}
  - algorithm: kto
    data: {{threshold: 0.5}}
    trl: {{max_steps: 2, per_device_train_batch_size: 8, learning_rate: 1.0e-4}}
"""


def write(root: Path, text: str = RECIPE, **values: object) -> Path:
    path = root / "offline.yaml"
    path.write_text(text.format(root=root, **values))
    return path


def rollouts(tasks: int) -> list[Experience]:
    """Two answers a question; the right one ends in 'so yes.', which a model can learn to prefer."""
    rows = []
    for number in range(tasks):
        task = TaskKey("sums", content_id(number))
        for member, (ending, reward) in enumerate((("so yes.", 1.0), ("or not?", 0.0))):
            group = f"earlier/g{number}"
            said = f"{number * 7 % 10} {ending}"
            rows.append(
                Experience(
                    experience_id_of("earlier", task, 0, group, member),
                    source="import",
                    run_id="earlier",
                    taskset=task.taskset,
                    task_id=task.task_id,
                    group_id=group,
                    member=member,
                    messages=(
                        {"role": "user", "content": f"What is {number}?"},
                        {"role": "assistant", "content": said},
                    ),
                    prompt_messages=1,
                    completion_text=said,
                    reward=reward,
                )
            )
    return rows


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(rollouts(60))
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run of every stage, and its summary; nothing is written into its buffer."""
    root = tmp_path_factory.mktemp("trained")
    with Buffer(root / "buffer") as buffer:
        buffer.append(rollouts(60))
    return root, run_recipe(load_recipe(write(root)))


@pytest.mark.slow
def test_run_trains_every_stage_measures_each_and_publishes_the_last_policy(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    stored, summary = trained
    found = summary["preferences"]
    assert list(found) == ["start", "0-sft", "1-dpo", "2-reward_model", "3-kto"]
    assert len({figures["pairs"] for figures in found.values()}) == 1
    assert found["start"]["accuracy"] == 0.5
    assert found["1-dpo"]["accuracy"] >= 0.9
    assert found["1-dpo"]["margin"] > found["start"]["margin"]
    stages = summary["stages"]
    pairs = 60 - int(found["start"]["pairs"])
    assert [stage["examples"] for stage in stages.values()] == [pairs, pairs, pairs, 2 * pairs]
    for name, stage in stages.items():
        folder = stored / "run" / "stages" / name
        lines = (folder / "trained_on.jsonl").read_text().splitlines()
        assert content_id([json.loads(line) for line in lines]) == stage["digest"]
        manifest = read_manifest(folder)
        assert (manifest["stage"], manifest["trained_on"]) == (name, stage["digest"])
        assert {"model.safetensors", "trained_on.jsonl", "config.json"} <= set(manifest["files"])
    assert not list((stored / "run" / "stages").glob("*.steps")), "the counts of steps are gone"
    assert summary["model"].endswith("3-kto")
    scorer = stored / "run" / "stages" / "2-reward_model"
    assert AutoModelForSequenceClassification.from_pretrained(scorer).config.num_labels == 1
    with Buffer(stored / "buffer", read_only=True) as buffer:
        [version] = buffer.read("versions").to_pylist()
        metrics = buffer.read("metrics").to_pylist()
        assert buffer.counts()["preferences"] == 0  # mined pairs are nobody's statement
    assert (stored / "run" / "weights" / version["path"] / "manifest.json").is_file()
    losses = [row["step"] for row in metrics if row["key"] == "1-dpo/loss"]
    assert losses == list(range(1, 13))
    measured = [row["value"] for row in metrics if row["key"] == "heldout/accuracy"]
    assert measured == [figures["accuracy"] for figures in found.values()]
    [events] = (stored / "run" / "tensorboard" / "1-dpo").glob("*tfevents*")
    assert b"train/1-dpo/loss" in events.read_bytes()
    page = report(str(stored / "run"))
    shown = [f"trainer/{name}/loss" for name in ("0-sft", "1-dpo", "2-reward_model", "3-kto")]
    assert [one for one in [*shown, "run/heldout/accuracy"] if one not in page] == []
    assert run_recipe(load_recipe(write(stored))) == summary  # it is complete


@pytest.mark.heavy
def test_stage_in_a_process_of_its_own_learns_the_same(stored: Path) -> None:
    only = RECIPE[: RECIPE.index("heldout:")] + "stages:\n" + RECIPE[RECIPE.index("  - algorithm: dpo") :]
    only = only[: only.index("  - algorithm: reward_model")].replace("max_steps: 12", "max_steps: 3")
    here = run_recipe(load_recipe(write(stored, only)))
    there = only.replace("name: offline", "name: apart").replace("{root}/run", "{root}/apart")
    apart = run_recipe(load_recipe(write(stored, there), ["placement.use=local"]))
    [one], [other] = here["stages"].values(), apart["stages"].values()
    assert (one["digest"], one["examples"]) == (other["digest"], 60)
    assert other["metrics"]["loss_last"] == pytest.approx(one["metrics"]["loss_last"], rel=1e-4)
    assert one["metrics"]["loss_first"] == pytest.approx(0.693147, abs=1e-5)


@pytest.mark.slow
def test_lineage_tells_which_stages_a_row_was_trained_in(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    stored, summary = trained
    folder = stored / "run" / "stages" / "1-dpo"
    [one, *_] = [json.loads(line) for line in (folder / "trained_on.jsonl").read_text().splitlines()]
    with Buffer(shutil.copytree(stored / "buffer", tmp_path / "buffer")) as buffer:
        better, worse = (
            lineage(buffer, one[f"{half}_experience_id"]).stages for half in ("chosen", "rejected")
        )
        known = {row["stage"]: row for row in buffer.read("stage_rows").to_pylist()}
        halves = {name for row in known.values() for name in row["experience_ids"]}
        heldout = set(buffer.read("experiences", ["experience_id"]).column(0).to_pylist()) - halves
        assert [lineage(buffer, name).stages for name in heldout] == [()] * len(heldout) != []
        # a stage that is trained anew counts as it was trained last
        buffer.add_rows("stage_rows", [{**known["1-dpo"], "digest": "other", "experience_ids": []}])
        left = lineage(buffer, one["chosen_experience_id"]).stages
    assert [at.stage for at in better] == ["0-sft", "1-dpo", "2-reward_model", "3-kto"]
    assert [at.stage for at in worse] == ["1-dpo", "2-reward_model", "3-kto"]
    assert {at.stage: at.digest for at in better} == {n: s["digest"] for n, s in summary["stages"].items()}
    assert known["1-dpo"]["preference_ids"] != [] == known["0-sft"]["preference_ids"]
    assert [at.stage for at in left] == ["0-sft", "2-reward_model", "3-kto"]


@pytest.mark.slow
def test_train_command_takes_recipes_that_explore_nothing(stored: Path) -> None:
    refused = CliRunner().invoke(app, ["train", str(write_online(stored))])
    assert refused.exit_code == 2
    assert "has mode 'online', and rft train takes the modes train, offline" in refused.output
    broken = RECIPE.replace("pairs: mined}}", "pairs: mined, where: reward > 5}}", 1)
    nothing = CliRunner().invoke(app, ["train", str(write(stored, broken))])
    assert nothing.exit_code == 1
    assert "no preference pair could be mined" in nothing.output


@pytest.mark.slow
def test_stopped_run_goes_on_with_the_stage_that_failed(stored: Path) -> None:
    text = RECIPE.replace("fraction: 0.3", "fraction: 0.5").replace("max_steps: 12", "max_steps: 2")
    broken = text.replace("learning_rate: 1.0e-3, beta: 0.1", "learning_rate: 1.0e+30, max_grad_norm: 0.0")
    with pytest.raises(TrainingError, match="No model is written"):
        run_recipe(load_recipe(write(stored, broken)))
    done = stored / "run" / "stages" / "0-sft" / "model.safetensors"
    before = done.stat().st_mtime_ns
    with pytest.raises(ResumeError, match=r"^buffer .* holds run(.|\n)*stages\.1\.trl\.learning_rate"):
        run_recipe(load_recipe(write(stored, text)))
    progress = json.loads((stored / "run" / "progress.json").read_text())
    assert progress["done"] == ["start", "0-sft", "0-sft measured"]
    with pytest.raises(TrainingError, match="No model is written"):
        run_recipe(load_recipe(write(stored, broken)))
    assert done.stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_stop_within_a_stage_checkpoints_it_and_a_resume_goes_on_there(stored: Path) -> None:
    recipe, run = (
        load_recipe(write(stored, RECIPE.replace("max_steps: 8", "max_steps: 100000"))),
        stored / "run",
    )
    at = [0]
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(_stop_after, run, at[-1])
            with pytest.raises(Stopped, match=r"stopped at optimizer step \d+ of 100000, as asked"):
                run_recipe(recipe)
            asked.result()
        record = read_record(run)
        assert record is not None
        assert (record.state, record.exit_code) == (RunState.STOPPED, 130)
        [checkpoint] = (run / "stages" / "0-sft.checkpoints").glob("checkpoint-*")
        at.append(int(checkpoint.name.removeprefix("checkpoint-")))
    assert 0 < at[1] < at[2]
    assert not (run / "stages" / "0-sft" / "model.safetensors").exists()


def _stop_after(run: Path, step: int) -> None:
    """Ask the run to stop once its first stage has taken more than so many steps."""
    while (steps_taken(run / "stages" / "0-sft") or (0, 0))[0] <= step:
        time.sleep(0.01)
    ask_to_stop(run, now=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (
            "data: {{min_reward: 1.0}}",
            "data: {{run: nobody}}",
            TrainingError,
            "0 of run 'nobody' from rollout",
        ),
        ("fraction: 0.3, pairs: mined", "fraction: 0.3", TrainingError, "rft data annotate --pairwise"),
        ("beta: 0.1", "bta: 0.1", RecipeError, "'bta' is not an option of TRL's DPOConfig"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_recorded(
    stored: Path, old: str, new: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_recipe(load_recipe(write(stored, RECIPE.replace(old, new))))
    assert not (stored / "run" / "recipe.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    data: {{min_reward: 1.0}}\n", "", r"stage 0 \('sft'\) needs 'data'"),
        ("data: {{min_reward: 1.0}}", "data: {{where: rewrd > 1}}", "'where' over experiences: [^?]*rewrd"),
        ("data: {{pairs: mined}}", "data: {{margin: 0.5}}", "stored pairs are chosen by 'where'"),
        ("data: {{pairs: mined}}", "data: {{where: author = 'x', pairs: mined}}", "over experiences"),
        ("min_reward: 1.0", "sources: [eval]", "stages.0.data.sources"),
        ("stages:", "monitor: {{prometheus_port: 9}}\nstages:", "of mode 'offline' has none: leave it out"),
    ],
)
def test_bad_sections_are_recipe_errors(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(write(tmp_path, RECIPE.replace(old, new, 1)))


# --- GSM8K -----------------------------------------------------------------------------------------------

PREFERENCES = """\
recipe: 1
name: preferences
mode: offline
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
model: {{path: {root}/model}}
heldout: {{fraction: 0.25, pairs: mined, limit: 150}}
stages:
  - algorithm: sft
    data: {{min_reward: 1.0, best_of: 1}}
    trl: {{max_steps: 12, per_device_train_batch_size: 8, learning_rate: 1.0e-3}}
  - algorithm: dpo
    data: {{pairs: mined}}
    trl: {{max_length: 320, per_device_train_batch_size: 8, learning_rate: 2.0e-3, num_train_epochs: 1}}
"""


def build_model(folder: Path, texts: list[str]) -> None:
    """A tiny model whose tokenizer was made for the texts: a token for each byte would be slow."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    special, alphabet = [PAD, END, USER, ASSISTANT], sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=800, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    learned = json.loads(core.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
    )
    set_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.06,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def solutions() -> list[Experience]:
    """Three solutions of each problem as a group: two models', right or wrong, and the reference."""
    rows = gsm8k_rollouts(1319)
    written = [
        replace(
            row,
            experience_id=f"{row.group_id}-reference",
            member=2,
            messages=[*row.messages[:1], {"role": "assistant", "content": task.answer}],
            completion_text=task.answer,
            reward=1.0,
        )
        for row, task in zip(rows[::2], gsm8k_tasks(1319), strict=True)
    ]
    return [*rows, *written]


@needs_full
@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_right_gsm8k_solutions_come_to_be_preferred_on_problems_nobody_trained_on(tmp_path: Path) -> None:
    rows = solutions()
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(rows)
    build_model(tmp_path / "model", [row.completion_text for row in rows[::9]])
    summary = run_recipe(load_recipe(write(tmp_path, PREFERENCES)))
    start, trained = summary["preferences"]["start"], summary["preferences"]["1-dpo"]
    assert start["accuracy"] == 0.5
    # a coin would be off by 0.5 / sqrt(pairs), one standard deviation
    assert trained["accuracy"] > 0.5 + 3 * 0.5 / start["pairs"] ** 0.5
    assert trained["margin"] > 1.0
    assert trained["logp_margin"] > start["logp_margin"]
    losses = summary["stages"]["0-sft"]["metrics"]
    assert losses["loss_last"] < losses["loss_first"]


# --- hybrid ----------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_preferences_may_come_before_exploring(tmp_path: Path) -> None:
    path = write_online(tmp_path, steps=2)
    text = path.read_text()
    assert "  - algorithm: grpo\n" in text
    stage = (
        "  - algorithm: dpo\n"
        "    data: {where: \"source = 'human'\"}\n"
        "    trl: {max_steps: 2, per_device_train_batch_size: 4}\n"
    )
    path.write_text(text.replace("  - algorithm: grpo\n", stage + "  - algorithm: grpo\n"))
    question = {"role": "user", "content": "1 + 2 ="}
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        buffer.add_preferences(
            [
                PreferencePair(
                    "human",
                    "sums",
                    f"t{i}",
                    [{"role": "assistant", "content": f"{i}"}],
                    [{"role": "assistant", "content": f"{i} {i}"}],
                    messages=[question],
                )
                for i in range(6)
            ]
        )
    summary = run_recipe(load_recipe(path))
    assert list(summary["heldout_accuracy"]) == ["start", "sft", "dpo", "final"]
    assert summary["stages"]["1-dpo"]["examples"] == 6
    assert summary["consumed_steps"] == 2


@pytest.mark.slow
def test_model_that_is_not_there_is_named(stored: Path) -> None:
    built = RECIPE[RECIPE.index("  build:") : RECIPE.index("heldout:")]
    text = RECIPE.replace(built, "  path: {root}/nowhere\n")
    with pytest.raises(MissingFileError, match="nowhere"):
        run_recipe(load_recipe(write(stored, text)))


FROM_FILES = """\
recipe: 1
name: from-files
mode: offline
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
model: {{build: {{use: tiny_qwen2, hidden_size: 32, num_layers: 1, num_heads: 1, intermediate_size: 32}}}}
imports:
  - {{path: {root}/answers.jsonl, taskset: answers}}
  - {{path: {root}/pairs.parquet, format: trl-preference, limit: 6}}
stages:
  - {{algorithm: sft, data: {{sources: [import]}}, trl: {{max_steps: 1, per_device_train_batch_size: 2}}}}
  - {{algorithm: dpo, trl: {{max_steps: 1, per_device_train_batch_size: 2}}}}
"""


@pytest.mark.slow
def test_files_that_a_recipe_imports_are_what_its_stages_train_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [{"prompt": f"{n}?", "completion": str(n)} for n in range(4)]
    lines = [*map(json.dumps, answers), '{"prompt": "no answer"}']
    (tmp_path / "answers.jsonl").write_text("\n".join(lines))
    pairs = [{"prompt": f"{n}?", "chosen": str(n), "rejected": "no"} for n in range(9)]
    pq.write_table(pa.Table.from_pylist(pairs), tmp_path / "pairs.parquet")
    recipe = load_recipe(write(tmp_path, FROM_FILES))
    with caplog.at_level("WARNING"):
        summary = run_recipe(recipe)
    assert [stage["examples"] for stage in summary["stages"].values()] == [4, 6]
    assert "set aside: " in caplog.text
    assert "answers.jsonl:5" in caplog.text
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        assert set(buffer.read("experiences", ["taskset"])["taskset"].to_pylist()) == {"answers"}
        assert buffer.counts()["preferences"] == 6


@pytest.mark.slow
def test_imports_take_the_sources_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n}?", "completion": str(n), "level": n} for n in range(9)]
    lines = [*map(json.dumps, rows), "no JSON"]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "made.py").write_text(
        "def pairs(number):\n"
        "    for n in range(number):\n"
        "        yield {'prompt': f'{n}?', 'chosen': 'yes', 'rejected': 'no'}\n"
    )
    chosen = {"use": "file", "path": "rows.jsonl", "where": "level >= 5", "shuffle": 3, "limit": 2}
    made = {"use": "./made.py:pairs", "args": {"number": 3}}
    sections = [
        {"source": chosen},
        {"source": made, "taskset": "mine"},
        {"source": {**chosen, "use": "jsonl"}},
    ]
    for key in ("where", "shuffle", "limit"):
        del sections[2]["source"][key]
    with Buffer(tmp_path / "buffer") as buffer:
        import_sources([Import.model_validate(one) for one in sections[:2]], buffer)
        stored = buffer.read("experiences", ["taskset", "completion_text"]).to_pylist()
        assert {row["taskset"] for row in stored} == {"rows"}
        assert len({row["completion_text"] for row in stored} & set("5678")) == len(stored) == 2
        assert buffer.counts()["preferences"] == 3
        assert set(buffer.read("preferences", ["taskset"])["taskset"].to_pylist()) == {"mine"}
        [bad] = buffer.read("quarantine", ["reason"])["reason"].to_pylist()
        assert "rows.jsonl:10" in bad
        import_sources([Import.model_validate(sections[2])], buffer)
        assert buffer.counts()["experiences"] == 9


def test_an_import_of_which_nothing_can_be_stored_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "", "answer": "3"}\n')
    with (
        Buffer(tmp_path / "buffer") as buffer,
        pytest.raises(
            RecipeError, match=r"imports\.0\.path: none of the 1 rows of .* 'trl-prompt', the first"
        ),
    ):
        import_sources([Import(path=str(tmp_path / "a.jsonl"))], buffer)


@pytest.mark.slow
def test_rows_whose_only_score_is_shaped_feed_a_stage_that_chooses_by_score(tmp_path: Path) -> None:
    stage = KtoStage.model_construct(algorithm="kto", data=None)
    rows = [make_experience(n, reward=None, unscored_reason="a judge comes later") for n in range(4)]
    with Buffer(tmp_path / "b") as buffer:
        buffer.append(rows)
        with pytest.raises(TrainingError, match="'kto' chooses rows by their score, and none"):
            require_stage_rows(stage, buffer)
        buffer.add_feedback([Feedback(row.experience_id, "grader", "reward", 1.0) for row in rows])
        shape = OperatorPipeline([{"feedback_mapper": {"into": "shaped_reward"}}], name="ops", store=buffer)
        buffer.annotate(shape.run(buffer.take(range(4))))
        require_stage_rows(stage, buffer)
        assert len(chosen_rows(buffer, RowChoice(min_reward=0.5)).scores) == 4
