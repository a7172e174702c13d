"""The walks of docs/walks.md as they stand; ten mistakes are told at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from tests.docs import shell
from tests.docs.blocks import ROOT, python_blocks

PAGE = (ROOT / "docs" / "walks.md").read_text()
FILES = dict(re.findall(r"^`([\w.]+)`: .*?```\w+\n(.*?)```", PAGE, re.M | re.S))
COMMANDS = [
    words[1:]
    for block in re.findall(r"^```console\n(.*?)```", PAGE, re.M | re.S)
    for words in shell.commands(block)
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

pytestmark = pytest.mark.slow


def rft(*words: str) -> str:
    """What a command prints; it must end well."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"rft {' '.join(words)}: {done.output}"
    return done.output


def typed(words: list[str], keys: str) -> None:
    """A command that a person answers by keys."""
    command = [sys.executable, "-m", "rft_data.cli.app", *words]
    subprocess.run(command, env=ENVIRONMENT, input=keys, text=True, check=True, capture_output=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files in the working directory."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.heavy
def test_walks_lead_where_the_page_says(folder: Path) -> None:
    assert sorted(FILES) == [
        "logs.jsonl",
        "logs.yaml",
        "measure.yaml",
        "save.py",
        "shop.jsonl",
        "shop.py",
        "shop.yaml",
    ]
    assert python_blocks("walks.md") == [FILES["shop.py"], FILES["save.py"]]
    exec(FILES["save.py"], {})  # noqa: S102 - the page's own file
    for words in COMMANDS:
        typed(words, "aba") if "annotate" in words else rft(*words)
    with Buffer("runs/shop/buffer", read_only=True) as buffer:
        systems = {task.messages[0]["content"] for task in buffer.tasks()}
        assert systems == {"You are a clerk.", "You are a teacher."}
        assert buffer.counts()["leases"] >= 3
    with Buffer("runs/logs/buffer", read_only=True) as buffer:
        assert buffer.counts()["preferences"] == 3
    stages = json.loads(Path("runs/logs/summary.json").read_text())["stages"]
    assert {name: stage["examples"] for name, stage in stages.items()} == {"0-sft": 3, "1-dpo": 3}
    assert len(Path("sft.jsonl").read_text().splitlines()) == 6
    assert json.loads(Path("runs/measure/summary.json").read_text())["tasks"]["heldout"] == 3


MISTAKES = {
    "name: shop\n    source": (
        "name: shop\n    heldout: 2\n    source",
        "tasks.0.heldout: found 2; it should be less than",
    ),
    "path: shop.jsonl": ("path: shpo.jsonl", "'shpo.jsonl'.*did you mean 'shop.jsonl'"),
    "shop.py:reply": ("shop.py:repyl", "shop.py has no 'repyl'; did you mean 'reply'"),
    "use: shuffle": ("use: shufle", "selector 'shufle' is not known; did you mean 'shuffle'"),
    "group_size: 2": ("group_size: two", "explorer.group_size: found 'two'; it should be a valid integer"),
    "shop.py:right": ("shop.py:rihgt", "shop.py has no 'rihgt'; did you mean 'right'"),
    "algorithm: grpo": ("algorithm: grpoo", "algorithm 'grpoo' is not known; did you mean 'grpo'"),
    "steps: 3": ("stepz: 3", "stages.1.stepz: unknown key; did you mean 'steps'"),
    "    groups_per_step: 2\n": ("", "groups_per_step: is missing. Groups that one optimizer step trains on"),
    "seed: 0\n": ("trackers: []\n", "trackers: unknown key here; it is one of monitor"),
}


def with_mistakes() -> str:
    """The recipe of the first walk with all of them."""
    text = FILES["shop.yaml"].replace("name: shop\nmode", "name: shop\nseed: 0\nmode")
    for right, (wrong, _) in MISTAKES.items():
        assert text.count(right) == 1, right
        text = text.replace(right, wrong)
    return text


def test_ten_mistakes_are_told_at_once_each_with_its_place_and_the_mend(folder: Path) -> None:
    Path("wrong.yaml").write_text(with_mistakes())
    done = CliRunner().invoke(app, ["recipe", "validate", "wrong.yaml"])
    assert done.exit_code == 2
    told = [line for line in done.output.splitlines() if re.match(r"  wrong\.yaml:\d+:\d+ ", line)]
    missed = [said for _, said in MISTAKES.values() if not any(re.search(said, line) for line in told)]
    assert missed == []
    others = [line for line in told if not any(re.search(said, line) for _, said in MISTAKES.values())]
    assert all("stages.1.steps: is missing" in line for line in others)
