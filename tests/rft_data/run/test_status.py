import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.run_status import run_status_app
from rft_data.cli.status_text import curve, duration, status_text
from rft_data.core.errors import MissingFileError
from rft_data.core.files import write_manifest
from rft_data.run.control import RunControl
from rft_data.run.record import standing
from rft_data.run.status import RunStatus, open_buffer, run_status
from rft_data.run.watch.metrics_log import MetricsLog
from tests.rft_data.conftest import make_experience
from tests.template import FORK

ROOT = Path(__file__).parents[3]

BOOK = {"admitted": 12, "open": 3, "ready": 1, "leased": 2, "trained": 6}


def make_run(folder: Path, steps: int = 100, name: str = "r1") -> Path:
    """A run's folder before its first step."""
    run_dir = folder / "runs" / name
    run_dir.mkdir(parents=True)
    recipe = {
        "name": name,
        "buffer": {"uri": str(run_dir / "buffer")},
        "stages": [{"algorithm": "grpo", "steps": steps}],
    }
    (run_dir / "recipe.json").write_text(json.dumps(recipe))
    return run_dir


def record_steps(metrics: MetricsLog, first: int, last: int) -> None:
    """Steps as the loop records them; each took 2 s, and 12 s without work before the first."""
    for step in range(first, last):
        metrics._start -= 2.0 if step else 12.0
        metrics.record(
            step,
            step + 1,
            {
                "trainer": {"reward": step / 100, "bubble": 0.25},
                "explorer-0": {"bubble": 0.5},
                "sampler": {**BOOK, "lag_in_flight/0": 2.0, "lag_in_queue/8+": 1.0, "lag_in_queue/1": 3.0},
                "loop": {"generated_tokens_per_s": 512.0},
            },
        )


@pytest.mark.slow
def test_status_of_a_live_run_beside_its_writing_owner(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with RunControl(run_dir, attempt=1) as control, Buffer(run_dir / "buffer") as buffer:
        control.heard("explorer-0")
        before = run_status(run_dir)
        assert (before.progress, before.standing.state, before.eta_s) == (None, "running", None)
        buffer.append([make_experience(i) for i in range(3)])
        with MetricsLog(buffer, "r1") as metrics:
            record_steps(metrics, 0, 10)
            checkpoint = run_dir / "checkpoints" / "checkpoint-8"
            checkpoint.mkdir(parents=True)
            write_manifest(checkpoint, {"step": 8})
            (run_dir / "checkpoints" / "checkpoint-10").mkdir()  # not complete yet
            found = run_status(run_dir)
            record_steps(metrics, 10, 11)
            assert run_status(run_dir).progress.step == 11
    progress = found.progress
    assert progress is not None
    assert (progress.step, progress.version, found.steps) == (10, 10, 100)
    assert progress.reward == tuple(step / 100 for step in range(10))
    assert progress.step_s == pytest.approx(2.0, abs=0.5)
    assert found.eta_s == pytest.approx(180, abs=45)
    assert found.books == BOOK
    assert found.residual == 0
    assert found.rows["experiences"] == 3
    assert found.checkpoint is not None
    assert found.checkpoint[0] == 8
    assert {role.name: role.bubble for role in found.roles} == {"explorer-0": 0.5, "trainer": 0.25}


def text_of(status: RunStatus) -> dict[str, str]:
    """The text's lines by what they are about."""
    return {line[:12].strip(): line[12:] for line in status_text(status).splitlines()}


@pytest.mark.slow
def test_the_text_says_what_the_numbers_say(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with RunControl(run_dir) as control, Buffer(run_dir / "buffer") as buffer:
        control.phase("training step 10")
        with MetricsLog(buffer, "r1") as metrics:
            record_steps(metrics, 0, 10)
        control._beat()
        lines = text_of(run_status(run_dir))
    assert lines["state"] == "running"
    assert re.fullmatch(r"training step 10, for \d+ s", lines["at"])
    assert lines["step"].startswith("10 of 100, policy version 10, ")
    assert "s a step, 512 generated tokens/s, " in lines["pace"]
    assert lines["pace"].endswith("to go")
    assert lines["reward"].startswith("0.09  ▁")
    assert "0 to 0.09 over 10 steps" in lines["reward"]
    assert lines["lag, flight"].endswith("0: 2")
    assert lines["lag, queue"].endswith("1: 3  8+: 1")
    assert lines["trainer"] == "busy  75%  idle  25%"
    assert lines["groups"] == "admitted 12  open 3  ready 1  leased 2  trained 6"
    assert "GiB free of" in lines["disk"]


def test_steps_of_an_offline_stage_are_not_those_of_the_last_one(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, steps=14)
    with Buffer(run_dir / "buffer") as buffer:
        common = {"run_id": "r1", "value": 1.0}
        rows = [{**common, "role": "trainer", "step": step, "key": "0-sft/loss"} for step in range(20)]
        buffer.add_rows("metrics", [*rows, {**common, "role": "run", "step": 20, "key": "heldout/accuracy"}])
        assert run_status(run_dir).progress is None
        assert "step        0 of 14" in status_text(run_status(run_dir))
        with MetricsLog(buffer, "r1", []) as metrics:
            record_steps(metrics, 0, 2)
        found = run_status(run_dir)
    assert found.progress is not None
    assert found.progress.step == 2
    assert "0-sft/loss" not in found.progress.numbers["trainer"]


def test_a_run_that_is_being_checked_is_shown(tmp_path: Path) -> None:
    with RunControl(tmp_path) as control:
        control.phase("checking the recipe and reading the tasks")
        control._beat()
        text = status_text(run_status(tmp_path))
    assert re.search(r"state +running", text)
    assert re.search(r"at +checking the recipe", text)


@pytest.mark.slow
def test_a_step_that_takes_far_too_long_is_called_late(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with RunControl(run_dir), Buffer(run_dir / "buffer") as buffer:
        with MetricsLog(buffer, "r1") as metrics:
            record_steps(metrics, 0, 10)
        found = run_status(run_dir)
        assert found.progress is not None
        assert "LATE" not in text_of(found)["step"]
        stuck = replace(found, progress=replace(found.progress, last_step_s=61.0))
        assert "1 min 1 s ago  LATE: more than 10 times a step's time" in text_of(stuck)["step"]
        slow = replace(found, progress=replace(found.progress, last_step_s=61.0, step_s=7.0))
        assert "LATE" not in text_of(slow)["step"]


def test_rollouts_without_a_reward_are_shown_by_cause(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with Buffer(run_dir / "buffer") as buffer, MetricsLog(buffer, "r1") as metrics:
        record_steps(metrics, 0, 1)
        assert "no reward" not in text_of(run_status(run_dir))
        troubled = {
            "rollouts_unscored": 3.0,
            "rollouts_unscored/timeout": 2.0,
            "rollouts_unscored/judge": 1.0,
        }
        metrics.record(
            1, 2, {"explorer-0": troubled, "explorer-1": {**troubled, "rollouts_failed/infrastructure": 4.0}}
        )
        lines = text_of(run_status(run_dir))
    wanted = "last step: failed by infrastructure 4  unscored by judge 2  unscored by timeout 4"
    assert lines["no reward"] == wanted


@pytest.mark.slow
def test_tokens_that_were_for_nothing_are_shown_by_cause(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with Buffer(run_dir / "buffer") as buffer, MetricsLog(buffer, "r1") as metrics:
        record_steps(metrics, 0, 1)
        assert "burned" not in text_of(run_status(run_dir))
        lost = {"burned_tokens/cancelled": 30.0, "burned_s/cancelled": 2.0, "kept_length_ratio": 0.7}
        sampler = {"burned_tokens/stale": 12.0}
        metrics.record(1, 2, {"explorer-0": lost, "explorer-1": {**lost}, "sampler": sampler})
        lines = text_of(run_status(run_dir))
    wanted = (
        "cancelled 60 tokens in 4 s  stale 12 tokens  kept lengths / all: explorer-0 0.70, explorer-1 0.70"
    )
    assert lines["burned"] == f"last step: {wanted}"


def test_books_that_do_not_balance_stand_out(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with Buffer(run_dir / "buffer") as buffer, MetricsLog(buffer, "r1") as metrics:
        metrics.record(0, 1, {"sampler": {**BOOK, "admitted": 14}})
        found = run_status(run_dir)
    assert found.residual == 2
    assert text_of(found)["groups"].endswith("UNACCOUNTED FOR: 2")


@pytest.mark.slow
def test_after_a_resume_the_newest_numbers_of_a_step_count(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with Buffer(run_dir / "buffer") as buffer:
        for last, reward in ((5, 0.1), (3, 0.9)):  # five steps, then again from the checkpoint of step 2
            metrics = MetricsLog(buffer, "r1")
            for step in range(0 if last == 5 else 2, last):
                metrics.record(step, step, {"trainer": {"reward": reward}})
        found = run_status(run_dir)
    assert found.progress is not None
    assert (found.progress.step, found.progress.reward) == (3, (0.1, 0.1, 0.9))


@pytest.mark.slow
def test_another_runs_numbers_are_not_this_ones(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with Buffer(run_dir / "buffer") as buffer:
        MetricsLog(buffer, "r1").record(4, 5, {"trainer": {"reward": 0.5}})
        rows = [
            {"run_id": "r2", "role": "trainer", "step": step, "key": str(i), "value": 1.0}
            for step in range(50)
            for i in range(100)
        ]
        buffer.add_rows("metrics", rows)
        found = run_status(run_dir)
    assert found.progress is not None
    assert (found.progress.step, found.progress.reward) == (5, (0.5,))


@pytest.mark.slow
def test_a_run_that_only_explores_counts_groups(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    recipe = json.loads((run_dir / "recipe.json").read_text())
    del recipe["stages"]
    (run_dir / "recipe.json").write_text(json.dumps({**recipe, "mode": "explore", "groups": 40}))
    assert run_status(run_dir).groups == (0, 40)
    with Buffer(run_dir / "buffer") as buffer:
        group = dict.fromkeys(["group_id", "taskset", "task_id", "outcome", "dropped_by", "error"], "x")
        numbers = dict.fromkeys(["ordinal", "round", "attempt", "version", "version_min"], 0)
        for run_id in ("r1", "r1", "other"):
            buffer.add_rows("groups", [{**group, **numbers, "run_id": run_id, "rewards": [], "seqs": []}])
    assert text_of(run_status(run_dir))["played"] == "2 of 40 groups"


def test_a_run_that_only_trains_reports_under_the_run_that_explored(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, name="later")
    recipe = json.loads((run_dir / "recipe.json").read_text())
    (run_dir / "recipe.json").write_text(json.dumps({**recipe, "mode": "train", "explored_by": "r1"}))
    with Buffer(run_dir / "buffer") as buffer:
        MetricsLog(buffer, "r1").record(2, 5, {"trainer": {"reward": 0.5}})
        found = run_status(run_dir)
    assert found.progress is not None
    assert (found.run_id, found.progress.step) == ("later", 3)


@pytest.mark.slow
def test_json_has_null_for_what_json_cannot_say(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    with Buffer(run_dir / "buffer") as buffer:
        MetricsLog(buffer, "r1").record(0, 1, {"trainer": {"reward": math.nan, "kl": math.inf, "loss": 0.5}})
    done = CliRunner().invoke(run_status_app, ["status", str(run_dir), "--json"])
    assert done.exit_code == 0
    value = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert value["progress"]["numbers"]["trainer"] == {"reward": None, "kl": None, "loss": 0.5}
    assert (value["run_id"], value["standing"]["state"], value["steps"]) == ("r1", "unknown", 100)
    text = CliRunner().invoke(run_status_app, ["status", str(run_dir)]).stdout
    assert "reward      nan" in text


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, ValueError("a defect"), KeyboardInterrupt("stopped at step 3 of 9")])
def test_status_of_a_run_that_ended_says_how(tmp_path: Path, error: BaseException | None) -> None:
    run_dir = make_run(tmp_path)
    try:
        with RunControl(run_dir):
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    wanted = {
        type(None): "finished",
        ValueError: "failed: ValueError: a defect",
        KeyboardInterrupt: "stopped: stopped at step 3 of 9",
    }
    assert text_of(run_status(run_dir))["state"] == wanted[type(error)]


def test_status_names_the_sandbox_that_was_chosen(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    why = "landlock, asked for auto (bubblewrap: the command bwrap is not installed)"
    with RunControl(tmp_path) as control:
        control.runs_programs_in(why)
        control._beat()
        assert text_of(run_status(tmp_path))["sandbox"] == why
    with RunControl(tmp_path):
        assert "sandbox" not in text_of(run_status(tmp_path))


def test_no_such_run_is_exit_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(run_status_app, ["status", str(tmp_path)])
    assert (done.exit_code, "holds no run" in done.stderr) == (2, True)
    with pytest.raises(MissingFileError):
        run_status(tmp_path / "nowhere")


def test_a_run_without_a_buffer_yet_and_one_moved_are_shown(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    assert run_status(run_dir).progress is None
    with Buffer(run_dir / "buffer") as buffer:
        MetricsLog(buffer, "r1").record(0, 1, {"trainer": {"reward": 0.5}})
    moved = run_dir.rename(tmp_path / "elsewhere")
    opened = open_buffer(moved)
    assert opened is not None
    assert run_status(moved, buffer=opened).progress is not None


@pytest.mark.heavy
def test_watch_shows_frames_until_the_run_ends(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    code = """
import sys, time
from pathlib import Path
from rft_data.buffer import Buffer
from rft_data.run.control import RunControl
from rft_data.run.watch.metrics_log import MetricsLog
run_dir = Path(sys.argv[1])
with RunControl(run_dir) as control, Buffer(run_dir / "buffer") as buffer:
    metrics = MetricsLog(buffer, "r1")
    step = 0
    while not control.stop_requested:
        metrics.record(step, step, {"trainer": {"reward": 0.5}})
        step += 1
        if step == 3:
            print("ready", flush=True)
        time.sleep(0.05)
"""
    command = [sys.executable, "-c", FORK + code, str(run_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        watch = [sys.executable, "-c", f"{FORK}from rft_data.cli.run_status import run_status_app as a; a()"]
        command = [*watch, "status", str(run_dir), "--watch", "--every", "0.2", "--json"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            frames = [json.loads(watching.stdout.readline()) for _ in range(3)]
            while frames[-1]["progress"]["step"] <= frames[0]["progress"]["step"]:
                frames.append(json.loads(watching.stdout.readline()))
            (run_dir / "run.stop").write_text("drain")
            frames += [json.loads(line) for line in watching.stdout]
        assert (owner.wait(60), watching.returncode) == (0, 0)
    assert [frame["standing"]["state"] for frame in frames[:3]] == ["running"] * 3
    assert frames[-1]["standing"]["state"] == "finished"
    steps = [frame["progress"]["step"] for frame in frames]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]
    assert standing(run_dir).state == "finished"


def test_a_curve_has_a_bar_for_each_share_of_the_values() -> None:
    assert curve([0.0, 0.5, 1.0]).startswith("▁▅█  0 to 1 over 3 steps")
    assert curve([2.0, 2.0]).startswith("▁▁  ")
    assert curve([1.0]) == curve([math.nan, 1.0]) == ""
    assert len(curve([float(i) for i in range(200)]).split()[0]) == 40


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations_are_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
