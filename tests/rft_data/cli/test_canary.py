"""Values from the environment (secrets) never leave a process, and texts never act on a terminal."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli import edge
from rft_data.cli.app import app
from rft_data.core import masking
from rft_data.core.masking import hide, masked
from rft_data.run.control import RunControl
from tests.rft_data.conftest import make_experience

CANARY = 'ca"nary-5e\\cret-é'
FORMS = ("nary-5e", "c4n4ry")
RECIPE = """\
recipe: 1
name: canary
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model: {{build: {{use: tiny_qwen2, hidden_size: 32, num_layers: 1, num_heads: 2}}}}
tasks:
  - {{name: sums, source: {{use: reasoning_gym, dataset: chain_sum, size: 20}}, heldout: 0.5}}
selector: {{use: shuffle}}
explorer:
  engine: {{use: transformers}}
  group_size: 2
  max_tokens: 4
  reward: [{{use: 'tests.explorers.toys:Unbuildable', args: {{how: 'raise ${{env:RFT_CANARY}}'}}}}]
experience_ops:
  - grpo_advantage_mapper: {{}}
stages:
  - {{algorithm: grpo, groups_per_step: 1, steps: 1}}
evaluation: {{limit: 4}}
"""
Rft = Callable[..., Result]


@pytest.fixture
def rft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Rft]:
    """Runs a command in this process; afterwards nothing it wrote anywhere holds the secret."""
    monkeypatch.setenv("RFT_CANARY", CANARY)
    monkeypatch.setattr(masking, "_values", {})
    monkeypatch.setattr(masking, "_hidden", {})
    monkeypatch.setattr(masking, "_pattern", None)
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.format(root=tmp_path))
    said: list[str] = []

    def run(*arguments: str) -> Result:
        done = CliRunner().invoke(app, [argument.replace("RECIPE", str(path)) for argument in arguments])
        said.append(done.output)
        return done

    yield run
    said += capfd.readouterr()
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file != path]
    texts = [*said, *(file.read_bytes().decode("utf-8", "replace") for file in files)]
    assert not [text for text in texts for form in FORMS if form in text]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    [
        "mode=${env:RFT_CANARY}",
        "seed=${env:RFT_CANARY}",
        "stages.0.algorithm=${env:RFT_CANARY}",
        "stages.0.algorithm=a ${env:RFT_CANARY}:B",
        "selector={use: '${env:RFT_CANARY}'}",
        "selector={use: difficulty, args: {nothing: '${env:RFT_CANARY}'}}",
        "explorer.engine.use=${env:RFT_CANARY}",
        "explorer.limits={nothing: '${env:RFT_CANARY}'}",
        "experience_ops=[{'${env:RFT_CANARY}': {}}]",
    ],
)
def test_mistakes_in_a_recipe_show_no_value_from_the_environment(rft: Rft, mistake: str) -> None:
    done = rft("recipe", "validate", "RECIPE", mistake)
    assert "Traceback" not in done.output
    rft("recipe", "explain", "RECIPE", mistake)


def test_log_and_record_of_a_run_hide_values(rft: Rft, tmp_path: Path) -> None:
    hide({"${env:RFT_CANARY}": CANARY})

    def fail() -> None:
        with RunControl(tmp_path / "run"):
            logging.getLogger("x").warning("with %r and %s", CANARY, "\x1b[31mred")
            raise ValueError("x" * 1990 + CANARY)

    with pytest.raises(ValueError, match="nary"):
        fail()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "${env:RFT_CANARY}" in log
    assert "\\x1b[31mred" in log
    assert rft("logs", str(tmp_path / "run")).exit_code == 0


def test_short_values_numbers_and_words_are_not_hidden(rft: Rft) -> None:
    hide(
        {
            "${env:A}": "abc",
            "${env:B}": "1234",
            "${env:C}": "true",
            "${env:D}": "12345678",
            "${env:E}": "a\nlong",
        }
    )
    text = "abc 1234 true 1e4"
    assert masked(text) == text
    assert masked("12345678, long") == "${env:D}, ${env:E}"


ODD = "\x1b[2J\x1b]0;owned\x07\u202e"


@pytest.mark.slow
def test_commands_escape_what_would_act_on_a_terminal(rft: Rft, tmp_path: Path) -> None:
    buffer, name = Buffer(tmp_path / "b"), f"n{ODD}"
    buffer.append([make_experience(completion_text=ODD, run_id=f"run{ODD}")])
    buffer.add_rows("quarantine", [{"experience_id": ODD, "reason": f"r{ODD}", "row": {"x": ODD}}])
    buffer.close()
    uri = str(tmp_path / "b")
    source = tmp_path / f"i{ODD[:4]}.jsonl"
    source.write_text(json.dumps({"question": ODD}) + "\n")
    runs = tmp_path / f"r{ODD[:4]}"
    with pytest.raises(ValueError, match="why"), RunControl(runs):
        raise ValueError(f"why{ODD}")
    with (runs / "log.txt").open("a") as log:
        log.write(ODD)
    commands = [
        ("buffer", "tag", uri, name, "--note", ODD),
        ("buffer", "info", uri),
        ("buffer", "tag", uri),
        ("buffer", "head", uri),
        ("buffer", "quarantine", uri),
        ("buffer", "import", str(source), uri),
        ("buffer", "query", uri, "select completion_text from experiences"),
        ("logs", str(runs)),
        ("status", str(runs)),
        ("stop", str(runs)),
        ("recipe", "validate", str(source)),
    ]
    for command in commands:
        shown = rft(*command)
        assert not set(shown.output) & {"\x1b", "\x07", "\u202e"}, command
        assert shown.output, command


def test_commands_print_through_one_place() -> None:
    folder = Path(edge.__file__).parent
    others = [file.name for file in folder.glob("*.py") if "typer.echo" in file.read_text()]
    assert others == ["edge.py"]
