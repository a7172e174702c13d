"""Every command, on a run whose recipe takes a secret from the environment: nothing shows or stores it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from click.testing import Result
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core import masking
from tests.rft_data.cli.test_canary import CANARY, FORMS, RECIPE
from tests.rft_data.conftest import make_experience

SEED = "seed=${env:RFT_CANARY}"
ARGS = "selector={use: difficulty, args: {nothing: '${env:RFT_CANARY}'}}"
FILES = {"RECIPE": "r.yaml", "BUFFER": "buffer", "RUN": "run", "NONE": "none"}
ONE = "select experience_id from experiences"
COMMANDS: dict[str, list[str]] = {
    "doctor": ["--folder DIR --nothing"],
    "reward-server": ["NONE --port 0"],
    "serve": [f"NONE {SEED}", "NONE nothing=1"],
    "hub": ["BUFFER --port nothing"],
    "view": ["NONE", "RUN --host 0.0.0.0 --port 0"],
    "report": ["RUN -o DIR/report.html", "NONE"],
    "run": ["RECIPE", f"RECIPE {SEED}", "RECIPE nothing=${env:RFT_CANARY}"],
    "train": ["RECIPE", f"RECIPE {SEED}"],
    "explore": ["RECIPE", f"RECIPE {SEED}"],
    "eval": ["RECIPE", f"RECIPE {SEED}"],
    "resume": ["RUN", f"RUN {SEED}", "NONE"],
    "help": ["recipe", "nothing"],
    "init": ["DIR/project", "RECIPE"],
    "recipe list": [""],
    "recipe show": ["quickstart", "nothing"],
    "recipe copy": ["quickstart DIR/copy.yaml", "nothing DIR/other.yaml"],
    "recipe new": ["DIR/new.yaml --goal grpo --data RECIPE", "DIR/new.yaml --goal nothing"],
    "recipe diff": ["RECIPE RECIPE", f"RECIPE RECIPE {ARGS}", "RECIPE NONE"],
    "recipe schema": [""],
    "recipe validate": ["RECIPE", f"RECIPE {SEED}", f"RECIPE {ARGS}"],
    "recipe explain": ["RECIPE", f"RECIPE {SEED}", f"RECIPE {ARGS}"],
    "recipe probe": ["RECIPE", f"RECIPE {SEED}"],
    "buffer info": ["BUFFER", "NONE"],
    "buffer head": ["BUFFER", "BUFFER --table runs", "BUFFER --where nothing=1"],
    "buffer query": [f"BUFFER {ONE}", "BUFFER select"],
    "buffer search": ["BUFFER one", "BUFFER one --where nothing=1"],
    "buffer lineage": ["BUFFER e1", "BUFFER nothing"],
    "buffer tag": ["BUFFER one", "BUFFER two --where nothing=1"],
    "buffer branch": ["BUFFER DIR/branch", "BUFFER BUFFER"],
    "buffer import": ["BUFFER DIR/rows.jsonl", "BUFFER NONE"],
    "buffer export": ["BUFFER DIR/out.jsonl --format sft-messages", "BUFFER DIR/out --format nothing"],
    "buffer verify": ["BUFFER", "NONE"],
    "buffer repair": ["BUFFER --dry-run", "NONE"],
    "buffer compact": ["BUFFER", "NONE"],
    "buffer quarantine": ["BUFFER --export DIR/quarantine.jsonl", "NONE"],
    "buffer books": ["BUFFER --run run", "BUFFER --run nothing"],
    "buffer upgrade": ["BUFFER DIR/upgraded", "NONE DIR/upgraded"],
    "data annotate": ["--buffer BUFFER --author a --where nothing=1", "--buffer NONE --author a"],
    "data check": ["DIR/rows.jsonl", f"DIR/rows.jsonl --recipe RECIPE {SEED}"],
    "data rescore": ["RECIPE --buffer BUFFER", f"RECIPE {SEED} --buffer BUFFER"],
    "data run": ["RECIPE", f"RECIPE {SEED}"],
    "data dry-run": ["RECIPE --buffer BUFFER", f"RECIPE {SEED} --buffer BUFFER"],
    "data readmit": ["RECIPE --buffer BUFFER --run run --as b", f"RECIPE {SEED} --buffer BUFFER"],
    "data feedback add": [
        "--buffer BUFFER --experience e1 --author a --key good --value 1",
        "--buffer BUFFER --experience nothing --author a --key good --value 1",
    ],
    "data feedback import": ["DIR/rows.jsonl --buffer BUFFER --author a", "NONE --buffer BUFFER"],
    "data label-studio export": ["DIR/ls.json --buffer BUFFER", "DIR/ls.json --buffer NONE"],
    "data label-studio import": ["DIR/rows.jsonl --buffer BUFFER", "NONE --buffer BUFFER"],
    "ops list": [""],
    "ops show": ["grpo_advantage_mapper", "nothing"],
    "debug template": ["NONE"],
    "debug task": ["RECIPE", f"RECIPE {SEED}"],
    "debug reward": ["RECIPE --completion 1", f"RECIPE {SEED} --completion 1"],
    "debug op": ["grpo_advantage_mapper --buffer BUFFER", "nothing --buffer BUFFER"],
    "debug engine": [f"RECIPE {SEED}", f"RECIPE {ARGS}"],
    "status": ["RUN", "RUN --json", "NONE"],
    "stop": ["RUN", "NONE"],
    "scale": ["RUN 2", "NONE 2"],
    "token": ["explorer --name a", "nothing"],
    "logs": ["RUN", "NONE"],
}
"""Command to arguments, those of a good call first where it needs no engine, then faulty ones."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A buffer, and a run that failed because its reward could not be built with a secret."""
    folder = tmp_path_factory.mktemp("canary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFT_CANARY", CANARY)
        patch.setenv("RFT_HUB_TOKEN", CANARY)
        for name, value in (("_values", {}), ("_hidden", {}), ("_pattern", None)):
            patch.setattr(masking, name, value)
        (folder / "r.yaml").write_text(RECIPE.format(root=folder))
        (folder / "rows.jsonl").write_text(json.dumps({"question": "1 + 1", "answer": "2"}) + "\n")
        with Buffer(folder / "buffer") as buffer:
            buffer.append([make_experience(experience_id="e1", run_id="run")])
        done = rft(folder, "run", "RECIPE")
        assert done.exit_code == 2
        assert "cannot be built with the arguments {'how': 'raise ${env:RFT_CANARY}'}" in done.output
        assert not [form for form in FORMS if form in done.output]
        yield folder


def rft(folder: Path, name: str, arguments: str) -> Result:
    """Run a command in this process, with the folder's files in place of their names."""
    whole = next((text for text in (ONE, ARGS) if text in arguments), "WHOLE")
    words = [whole if word == "WHOLE" else word for word in arguments.replace(whole, "WHOLE").split()]
    filled = [str(folder / FILES[word]) if word in FILES else word for word in words]
    given = [word.replace("DIR", str(folder)) for word in filled]
    return CliRunner().invoke(app, [*name.split(), *given])


def leaves(command: Any, name: str = "") -> Iterator[str]:
    """The names of all commands below one."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name.strip()
    else:
        for part, inside in below.items():
            yield from leaves(inside, f"{name} {part}")


@pytest.mark.slow
def test_every_command_is_tried() -> None:
    assert set(leaves(typer.main.get_command(app))) == set(COMMANDS)


@pytest.mark.slow
def test_a_run_tells_and_keeps_the_reference_in_place_of_the_secret(folder: Path) -> None:
    record = json.loads((folder / "run" / "run.pid").read_text())
    assert "${env:RFT_CANARY}" in record["why"]
    assert "${env:RFT_CANARY}" in (folder / "run" / "log.txt").read_text()
    assert "${env:RFT_CANARY}" in rft(folder, "status", "RUN").output


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_shows_or_stores_a_secret(
    folder: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in COMMANDS[name]:
        done = rft(folder, name, arguments)
        said = [done.output, *capfd.readouterr()]
        if done.exc_info is not None and not isinstance(done.exception, SystemExit):
            said += traceback.format_exception(*done.exc_info)
        files = [file for file in folder.rglob("*") if file.is_file() and file.name != "r.yaml"]
        said += [file.read_bytes().decode("utf-8", "replace") for file in files]
        assert not [text for text in said for form in FORMS if form in text], arguments
