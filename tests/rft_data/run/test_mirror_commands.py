"""What commands and pages of another machine see of a run on an S3-compatible store, and may not do."""

import json
import os
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import BusyError, FencedError, MissingFileError, ResumeError
from rft_data.core.objects import Objects
from rft_data.core.words import RunState
from rft_data.recipe import load_recipe
from rft_data.run.folder import Run
from rft_data.run.mirror import Mirror, run_folder
from rft_data.run.occupied import check_free
from rft_data.run.record import RECIPE_FILE, RunRecord, write_record
from rft_data.web import runs
from rft_data.web.runs import lines
from rft_data.web.subjects import Subjects
from tests.rft_data.run.stored_runs import Node, write
from tests.rft_data.run.test_online import write_recipe

pytestmark = pytest.mark.slow


def test_what_commands_read_is_one_copy_that_is_renewed(url: str, node: Node) -> None:
    run = Mirror(url)
    write(run.folder, "log.txt", "a")
    write(run.folder, "summary.json", "{}")
    run.save()
    seen = run_folder(url)
    assert (seen / "log.txt").read_text() == "a"
    write(run.folder, "log.txt", "b")
    (run.folder / "summary.json").unlink()
    run.save()
    assert run_folder(url) == seen
    assert sorted(os.listdir(seen)) == [".copy-of", ".fetched", "log.txt"]
    assert (seen / "log.txt").read_text() == "b"
    run.close()


@pytest.mark.heavy
def test_another_recipe_writer_or_machine_does_not_end_a_run_that_is_at_work_unless_it_is_asked_to(
    url: str, node: Node, tmp_path: Path
) -> None:
    path, stored = write_recipe(tmp_path), [f"run_dir={url}", f"buffer.uri={url}/buffer"]
    recipe, now = load_recipe(path, stored), time.time()
    run = Mirror(url)
    write(run.folder, RECIPE_FILE, json.dumps(recipe.saved()))
    write_record(run.folder, RunRecord(7, "a", 0, now, RunState.RUNNING, now), durable=False)
    run.save()
    row = {
        "run_id": recipe.name,
        "recipe": recipe.saved(),
        "recipe_hash": "",
        "code_version": "",
        "attempt": 0,
    }
    with Buffer(f"{url}/buffer") as buffer:
        buffer.add_rows("runs", [row])
        node.go("b")
        with pytest.raises(ResumeError, match="of another recipe"):
            Run(load_recipe(path, [*stored, "seed=5"]))
        with pytest.raises(
            BusyError, match=r"process 7 on a\), and writing to it from here would end that run"
        ):
            check_free(f"{url}/buffer")
        for command in ("compact", "repair"):
            refused = CliRunner().invoke(app, ["buffer", command, f"{url}/buffer"])
            assert "would end that run" in refused.output
        looked = CliRunner().invoke(app, ["buffer", "repair", f"{url}/buffer", "--dry-run"])
        assert looked.exit_code == 0, looked.output
        objects = Objects(f"{url}/buffer")
        manifest = objects.keys_below("runs.lance/_versions")[-1]
        with pytest.raises(BusyError, match=r"process 7 on a wrote its record .* --take-over"):
            Run(recipe)
        buffer.add_rows("runs", [row])
    run.save()
    with closing(Run(recipe, take_over=True)), pytest.raises(FencedError, match="taken over by another"):
        run.save()
    objects.put(write(tmp_path, "cut", ""), manifest)
    refused = CliRunner().invoke(app, ["buffer", "repair", f"{url}/buffer"])
    assert "would end that run" in refused.output
    node.go("a")
    run.close()
    Run(recipe).close()  # whose last start here has ended, as its lock says


def test_a_run_is_shown_from_another_machine(url: str, node: Node, tmp_path: Path) -> None:
    run, now = Mirror(url), time.time()
    recipe = load_recipe(write_recipe(tmp_path), [f"run_dir={url}", f"buffer.uri={url}/buffer"])
    write(run.folder, RECIPE_FILE, json.dumps(recipe.saved()))
    record = RunRecord(7, "a", 0, now, RunState.RUNNING, now)
    write_record(run.folder, record, durable=False)
    run.save()
    Buffer(f"{url}/buffer").close()
    node.go("b")
    out = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", url, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "running" in out.read_text()
    with Subjects([url, f"{url}/buffer"]) as subjects:
        [shown, alone] = subjects
        assert (shown.key, shown.where, alone.run_dir) == ("small", url, None)
        assert [one.wrong for one in lines(subjects)] == ["", ""]
        write_record(run.folder, replace(record, state=RunState.FINISHED), durable=False)
        run.save()
        run_folder(url)
        assert runs.line(subjects, subjects["small"]).status.standing.state == RunState.FINISHED
    run.close()


def test_a_run_that_stored_nothing_says_so(url: str, node: Node) -> None:
    Mirror(url).close()
    with pytest.raises(MissingFileError, match=f"the run at {url} has stored nothing yet"):
        run_folder(url)
