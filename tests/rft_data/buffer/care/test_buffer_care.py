"""The commands, through a small Typer app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner, Result

from rft_data.buffer import Buffer
from rft_data.buffer.care.damage import KINDS, FindingKind
from rft_data.cli import buffer_care
from tests.rft_data.buffer.care.conftest import data_file, make_row

app = typer.Typer()
for command in (buffer_care.verify, buffer_care.repair, buffer_care.compact, buffer_care.quarantine):
    app.command()(command)


def rft(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
def test_verify_exits_0_on_a_sound_buffer_and_1_on_a_damaged_one(root: Path) -> None:
    sound = rft("verify", root)
    assert (sound.exit_code, "no damage" in sound.stdout) == (0, True)
    data_file(root, "experiences").unlink()
    damaged = rft("verify", root, "--json")
    assert damaged.exit_code == 1
    assert "missing_file" in {f["kind"] for f in json.loads(damaged.stdout)["findings"]}
    assert rft("verify", root, "--quick").exit_code == 1


@pytest.mark.slow
def test_repair_prints_what_was_lost(root: Path) -> None:
    data_file(root, "experiences").unlink()
    dry = rft("repair", root, "--dry-run")
    assert (dry.exit_code, "would be done" in dry.stdout) == (0, True)
    done = rft("repair", root, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["lost"]["rows"]["experiences"] == [[0, 7]]
    assert "nothing to repair" in rft("repair", root).stdout
    assert rft("verify", root).exit_code == 0


@pytest.mark.parametrize("command", ["verify", "repair", "compact", "quarantine"])
def test_commands_refuse_a_folder_without_a_buffer(tmp_path: Path, command: str) -> None:
    result = rft(command, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "there is no buffer at" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_compact_merges_fragments(root: Path) -> None:
    result = rft("compact", root, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)["experiences"]
    assert facts["fragments_before"] > facts["fragments_after"] == 1
    assert "experiences" in rft("compact", root).stdout


def test_quarantine_counts_reasons_and_exports_rows(root: Path, tmp_path: Path) -> None:
    assert "nothing is in quarantine" in rft("quarantine", root).stdout
    with Buffer(root) as buffer:
        buffer.append([make_row(300, reward=float("nan")), make_row(301)])
    value = json.loads(rft("quarantine", root, "--json").stdout)
    assert value["rows"] == 1
    target = tmp_path / "rows.jsonl"
    assert rft("quarantine", root, "--export", target).exit_code == 0
    (row,) = [json.loads(line) for line in target.read_text().splitlines()]
    assert row["experience_id"] == make_row(300).experience_id
    assert row["reason"] in value["reasons"]


def test_every_kind_of_finding_is_explained() -> None:
    assert tuple(KINDS) == get_args(FindingKind)
