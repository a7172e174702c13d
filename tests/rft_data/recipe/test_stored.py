"""Recipes of runs that an older version began."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from rft_data.core.errors import ResumeError
from rft_data.recipe.load import load_recipe, load_run
from rft_data.run.build import taskset_tasks
from rft_data.run.folder import Run
from tests.rft_data.run.test_online import write_recipe

COLUMNS = {"question": "1+1=", "answer": "2", "id": 7}


@pytest.mark.slow
def test_a_run_that_0_6_0_began_goes_on_with_the_tasks_it_began_with(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(COLUMNS))
    now, then = (
        f"tasks.0={{name: sums, source: {{use: jsonl, path: '{file}'}}{fields}}}"
        for fields in ("", ", metadata: []")
    )
    began = load_recipe(write_recipe(tmp_path), [then])
    assert "metadata" not in began.saved()["tasks"][0], "0.6.0 stored no empty list"
    with closing(Run(began)) as run:
        run.begin()
    again = load_run(Path(began.run_dir))
    assert taskset_tasks(again.tasks[0])[0].metadata == {}
    with closing(Run(again)) as run:
        assert run.attempt == 1
    with pytest.raises(ResumeError, match=r"tasks\.0\.metadata: \[\] -> None"):
        Run(load_recipe(write_recipe(tmp_path), [now]))


@pytest.mark.slow
def test_a_run_that_keeps_all_columns_goes_on_with_them(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(COLUMNS))
    override = f"tasks.0={{name: sums, source: {{use: jsonl, path: '{file}'}}}}"
    began = load_recipe(write_recipe(tmp_path), [override])
    with closing(Run(began)) as run:
        run.begin()
    again = load_run(Path(began.run_dir))
    assert taskset_tasks(again.tasks[0])[0].metadata == {"id": 7}
    with closing(Run(again)) as run:
        assert run.attempt == 1
