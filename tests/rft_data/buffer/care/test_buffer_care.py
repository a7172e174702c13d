"""The commands, through a small Typer app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner, Result

from rft_data.buffer import Buffer
from rft_data.buffer.care import repair_stored, verify_stored
from rft_data.buffer.care.damage import KINDS, FindingKind
from rft_data.cli import buffer_care
from rft_data.core import failpoints
from rft_data.core.errors import IntegrityError
from rft_data.core.objects import Objects
from tests.rft_data.buffer.care.conftest import RUN, data_file, make_row

app = typer.Typer()
for command in (buffer_care.verify, buffer_care.repair, buffer_care.compact, buffer_care.quarantine):
    app.command()(command)


class Place:
    """The filled buffer in a folder, or the same on an object store."""

    def __init__(self, root: Path, url: str = "") -> None:
        self._root, self.uri = root, url or str(root)
        self._objects = Objects(url) if url else None
        if self._objects is not None:
            Buffer(url).close()  # makes the table of its owner
            for path in sorted(root.rglob("*")):
                if path.is_file() and path.name not in ("schema_version", "owner.lock"):
                    self._objects.put(path, str(path.relative_to(root)))

    def lose_data(self) -> None:
        """Remove the first data file of the experiences."""
        file = data_file(self._root, "experiences")
        file.unlink()
        if self._objects is not None:
            self._objects.remove(str(file.relative_to(self._root)))


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Two commits of eight experiences, and a metric: each file is several requests to a store."""
    metric = {"run_id": RUN, "role": "run", "step": 0, "key": "reward", "value": 0.5}
    with Buffer(tmp_path / "few") as buffer:
        buffer.add_rows("metrics", [metric])
        for start in (0, 8):
            buffer.append([make_row(number) for number in range(start, start + 8)])
    return tmp_path / "few"


@pytest.fixture(params=["folder", "store"])
def place(request: pytest.FixtureRequest) -> Place:
    """All tables in a folder, or few rows on a store."""
    if request.param == "store":
        return Place(request.getfixturevalue("few"), f"{request.getfixturevalue('bucket')}/buffer")
    return Place(request.getfixturevalue("root"))


def rft(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.heavy
def test_verify_exits_0_on_a_sound_buffer_and_1_on_a_damaged_one(place: Place) -> None:
    sound = rft("verify", place.uri)
    assert (sound.exit_code, f"{place.uri}: " in sound.stdout, "no damage" in sound.stdout) == (0, True, True)
    place.lose_data()
    damaged = rft("verify", place.uri, "--json")
    assert damaged.exit_code == 1
    assert "missing_file" in {f["kind"] for f in json.loads(damaged.stdout)["findings"]}
    assert rft("verify", place.uri, "--quick").exit_code == 1


@pytest.mark.heavy
def test_repair_prints_what_was_lost(place: Place) -> None:
    place.lose_data()
    dry = rft("repair", place.uri, "--dry-run")
    assert (dry.exit_code, "would be done" in dry.stdout) == (0, True)
    done = rft("repair", place.uri, "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["lost"]["rows"]["experiences"] == [[0, 7]]
    assert json.loads(done.stdout)["folder"].startswith(f"{place.uri}/repair/")
    assert "nothing to repair" in rft("repair", place.uri).stdout
    assert rft("verify", place.uri).exit_code == 0
    with Buffer(place.uri) as buffer:  # whose next row does not get the number of a lost one
        assert buffer.lost_rows() == set(range(8))
        assert buffer.append([make_row(999)]).seqs[0] == len(buffer) + 7


@pytest.mark.heavy
def test_a_repair_that_was_interrupted_on_a_store_is_finished_by_the_next(few: Path, bucket: str) -> None:
    place = Place(few, f"{bucket}/buffer")
    place.lose_data()
    with failpoints.armed("care.put", 3), pytest.raises(OSError, match=r"care\.put"):
        repair_stored(place.uri)
    with pytest.raises(IntegrityError, match=r"a repair of buffer s3:.* was interrupted"):
        Buffer(place.uri)
    assert repair_stored(place.uri).changed
    assert not verify_stored(place.uri).damaged
    Buffer(place.uri).close()


@pytest.mark.parametrize("command", ["verify", "repair", "compact", "quarantine"])
def test_commands_refuse_a_folder_without_a_buffer(tmp_path: Path, command: str) -> None:
    result = rft(command, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "there is no buffer at" in result.stderr
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.heavy
def test_compact_merges_fragments(place: Place) -> None:
    result = rft("compact", place.uri, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)["experiences"]
    assert facts["fragments_before"] > facts["fragments_after"] == 1
    assert "experiences" in rft("compact", place.uri).stdout


@pytest.mark.slow
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
