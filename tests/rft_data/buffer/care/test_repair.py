"""The damage catalogue: what verify says of each kind, what repair makes of it, what survives."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.buffer.care import repair, verify
from rft_data.buffer.care.commits import append, placeholders
from rft_data.buffer.care.folder import TableFolder
from rft_data.buffer.care.lost_rows import read_lost
from rft_data.buffer.care.settle import append_rows
from rft_data.core.canonical import content_id
from rft_data.core.digests import row_digests
from rft_data.core.errors import BusyError, IntegrityError, MissingFileError
from rft_data.sampler.ledger import Ledger
from tests.rft_data.buffer.care.conftest import (
    GROUP,
    RUN,
    STEPS,
    annotations_of,
    data_file,
    group_of,
    group_result,
    group_row,
    make_row,
    newest_manifest,
    stored,
)

pytestmark = pytest.mark.usefixtures("decoded_here")

ROWS = 2 * GROUP * STEPS
BIG_TABLES = ("experiences", "annotations", "groups", "leases", "consumed", "tasks", "metrics", "payloads")
OTHER_TABLES = [table for table in BIG_TABLES if table != "experiences"]
"""Damaged together: what repair makes of one table's files does not depend on another's."""


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(hashlib.shake_128(data).digest(len(data) - 16) + data[-16:])


def remove(path: Path) -> None:
    path.unlink()


def prints(root: Path) -> set[str]:
    """Digests of all files that hold anything, but those that each commit or opening replaces."""
    replaced = ("latest_version_hint.json", "owner.lock", "lost_rows.json")
    files = [path for path in root.rglob("*") if path.is_file() and path.name not in replaced]
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def raw_append(root: Path, table: str, rows: pa.Table) -> None:
    append(lance.dataset(str(root / f"{table}.lance")), rows)


def check_mended(root: Path, pristine: Path, lost: dict[str, set[int]], *, next_seq: int = ROWS) -> None:
    """Damage is gone, a second repair is idle, all rows but `lost` are as they were, appends go on."""
    assert not repair(root).changed
    for table in BIG_TABLES:
        before, after = stored(pristine, table), stored(root, table)
        keep = [i for i in range(before.num_rows) if i not in lost.get(table, set())]
        assert after.slice(0, len(keep)).equals(before.take(pa.array(keep, pa.int64()))), table
    with Buffer(root) as buffer:
        rows = [make_row(number) for number in range(200, 208)]
        assert buffer.append(rows).seqs == tuple(range(next_seq, next_seq + 8))
        assert [r.as_py() for r in buffer.take([next_seq + 3])["experience_id"]] == [rows[3].experience_id]
        assert len(buffer) == ROWS - len(lost.get("experiences", ())) + 8
        assert buffer.append([make_row(0)]).seqs == (
            (next_seq + 8,) if 0 in lost.get("experiences", ()) else (0,)
        )
    head = TableFolder(root, "experiences").head
    assert head is not None
    numbers = head.dataset.scanner(columns=["seq"], with_row_id=True).to_table()
    assert numbers["seq"].to_pylist() == numbers["_rowid"].to_pylist()


# --- manifests ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "damage"),
    [
        (["experiences"], empty),
        (OTHER_TABLES, empty),
        *(pytest.param(["experiences"], damage, marks=pytest.mark.slow) for damage in (cut, zeros, garbage)),
    ],
)
def test_repair_falls_back_from_a_damaged_newest_manifest_and_loses_no_row(
    root: Path, pristine: Path, tables: list[str], damage: Callable[[Path], None]
) -> None:
    manifests = {table: newest_manifest(root, table) for table in tables}
    for manifest in manifests.values():
        damage(manifest)
    before = prints(root)
    found = verify(root).of("manifest")
    assert {(finding.table, finding.place, finding.severity) for finding in found} == {
        (table, str(manifest.relative_to(root)), "damage") for table, manifest in manifests.items()
    }
    assert len(found) == len(tables)
    done = repair(root)
    assert sorted(done.commits) == sorted(
        f"{table}@{TableFolder(pristine, table).manifests[0].version}" for table in tables
    )
    assert all(done.recovered[table] > 0 for table in tables)
    assert not done.removed
    assert before <= prints(root)
    assert done.folder is not None
    assert all((done.folder / manifest.relative_to(root)).is_file() for manifest in manifests.values())
    check_mended(root, pristine, {})


@pytest.mark.slow
def test_repair_of_a_commit_whose_every_file_is_empty_loses_it_and_never_gives_its_numbers_again(
    root: Path, pristine: Path
) -> None:
    tail = set(range(ROWS - 8, ROWS))
    empty(newest_manifest(root, "experiences"))
    empty(_newest_data(pristine, root, "experiences"))
    for transaction in (root / "experiences.lance/_transactions").glob("*"):
        empty(transaction)
    report = verify(root)
    assert {(f.kind, f.table) for f in report.damage} == {
        ("manifest", "experiences"),
        ("row_counter", "experiences"),
        ("group", "groups"),
    }
    assert report.of("row_counter")[0].rows == ((ROWS - 8, ROWS - 1),)
    done = repair(root)
    assert done.skipped == ((ROWS - 8, ROWS - 1),)
    assert read_lost(root).seqs == ((ROWS - 8, ROWS - 1),)
    assert set(done.experience_ids) == {make_row(number).experience_id for number in tail}
    assert done.groups == [group_of(ROWS - 8), group_of(ROWS - 4)]
    check_mended(root, pristine, {"experiences": tail})


@pytest.mark.slow
def test_repair_reuses_the_numbers_of_a_lost_commit_that_nothing_names(root: Path, pristine: Path) -> None:
    with Buffer(root) as buffer:
        assert buffer.append([make_row(number) for number in range(100, 104)]).seqs[0] == ROWS
    lost = data_file(root, "experiences", -1)
    empty(newest_manifest(root, "experiences"))
    empty(lost)
    assert [finding.kind for finding in verify(root).damage] == ["manifest"]
    assert repair(root).skipped == ()
    assert read_lost(root).seqs == ()
    check_mended(root, pristine, {})


def _newest_data(pristine: Path, root: Path, table: str) -> Path:
    return root / data_file(pristine, table, -1).relative_to(pristine)


@pytest.mark.slow
@pytest.mark.parametrize("tables", [["experiences"], OTHER_TABLES])
def test_repair_starts_tables_anew_when_no_version_opens(
    root: Path, pristine: Path, tables: list[str]
) -> None:
    for table in tables:
        for manifest in TableFolder(root, table).manifests:
            empty(manifest.path)
    before = prints(root)
    assert sorted(f.table for f in verify(root).of("no_table")) == sorted(tables)
    done = repair(root)
    assert {table: done.recovered[table] for table in tables} == {
        table: stored(pristine, table).num_rows for table in tables
    }
    assert before <= prints(root)
    check_mended(root, pristine, {})


@pytest.mark.slow
def test_a_damaged_older_manifest_is_a_note(root: Path) -> None:
    empty(newest_manifest(root, "groups", back=2))
    report = verify(root)
    assert not report.damaged
    assert [f.table for f in report.of("old_manifest")] == ["groups"]


@pytest.mark.slow
def test_a_repair_that_was_killed_after_moving_the_manifest_is_finished_by_the_next(
    root: Path, pristine: Path
) -> None:
    remove(newest_manifest(root, "experiences"))
    assert verify(root).of("row_counter")
    assert repair(root).recovered["experiences"] == 8
    check_mended(root, pristine, {})


@pytest.mark.slow
def test_placeholders_of_a_repair_that_was_killed_are_taken_out_by_the_next(
    root: Path, pristine: Path
) -> None:
    schema = stored(root, "experiences").schema
    raw_append(root, "experiences", placeholders(schema, 3))
    repair(root)
    assert read_lost(root).seqs == ((ROWS, ROWS + 2),)
    check_mended(root, pristine, {}, next_seq=ROWS + 3)


@pytest.mark.slow
def test_two_damaged_manifests_give_both_commits_back(root: Path, pristine: Path) -> None:
    for back in (0, 1):
        cut(newest_manifest(root, "experiences", back=back))
    done = repair(root)
    assert done.recovered["experiences"] == 16
    check_mended(root, pristine, {})


# --- data files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """What the loss of one fragment of a table takes with it."""

    table: str
    place: int
    rows: set[int]
    """Row ids of the fragment."""
    also: set[tuple[str, str]] = field(default_factory=set)
    """(kind, table) of findings that follow from it."""
    groups_out: set[int] = field(default_factory=set)
    """Row ids that go from `groups`, to be judged again."""


LOSSES = [
    Loss("experiences", 0, set(range(8)), {("group", "groups")}),
    Loss("experiences", 3, set(range(24, 32)), {("group", "groups"), ("lease", "leases")}),
    Loss("experiences", -1, set(range(ROWS - 8, ROWS)), {("group", "groups")}),
    Loss("annotations", 1, set(range(8, 16)), {("verdict", "groups")}, {2, 3}),
    Loss("groups", 0, {0, 1}),
    Loss("leases", 1, {1}, {("consumption", "consumed")}),
    Loss("leases", -1, {4}),
    Loss("consumed", 0, {0, 1}),
    Loss("tasks", 0, {0}),
    Loss("metrics", 0, {0}),
    Loss("payloads", 0, {0}, {("payload", "payloads")}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("losses", "damage", "kind"),
    [
        ([LOSSES[0]], empty, "empty_file"),
        *(
            pytest.param(losses, damage, kind, marks=pytest.mark.slow)
            for losses, damage, kind in (
                ([LOSSES[1]], remove, "missing_file"),
                ([LOSSES[2]], cut, "cut_file"),
                ([LOSSES[3]], remove, "missing_file"),
                ([LOSSES[4]], remove, "missing_file"),
                ([LOSSES[5]], remove, "missing_file"),
                (LOSSES[6:], remove, "missing_file"),
            )
        ),
    ],
)
def test_repair_gives_up_lost_data_files_and_nothing_else(
    root: Path, pristine: Path, losses: list[Loss], damage: Callable[[Path], None], kind: str
) -> None:
    paths = {loss.table: data_file(root, loss.table, loss.place) for loss in losses}
    for path in paths.values():
        damage(path)
    before = prints(root)
    report = verify(root)
    follows = set().union(*(loss.also for loss in losses))
    assert {(f.kind, f.table) for f in report.damage} == {(kind, table) for table in paths} | follows
    found = {finding.table: (finding.place, finding.rows) for finding in report.of(kind)}
    assert found == {
        loss.table: (str(paths[loss.table].relative_to(root)), ((min(loss.rows), max(loss.rows)),))
        for loss in losses
    }
    done = repair(root)
    gone = {"groups": set().union(*(loss.groups_out for loss in losses))}
    gone |= {loss.table: loss.rows for loss in losses}
    assert {table: set(done.removed[table]) for table in paths} == {loss.table: loss.rows for loss in losses}
    assert before <= prints(root)
    check_mended(root, pristine, gone)
    lost = [(min(loss.rows), max(loss.rows)) for loss in losses if loss.table == "experiences"]
    assert read_lost(root).seqs == tuple(lost)


@pytest.mark.slow
def test_repair_takes_rows_from_an_older_version_when_compaction_lost_its_file(
    root: Path, pristine: Path
) -> None:
    with Buffer(root) as buffer:
        report = buffer.compact()
    assert report["experiences"]["fragments_after"] < report["experiences"]["fragments_before"]
    empty(data_file(root, "experiences"))
    empty(data_file(root, "annotations"))
    assert {f.table for f in verify(root).of("empty_file")} == {"experiences", "annotations"}
    done = repair(root)
    assert (done.recovered["experiences"], done.recovered["annotations"]) == (ROWS, ROWS)
    assert not done.removed
    check_mended(root, pristine, {})


# --- rows --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_repair_keeps_the_first_of_rows_with_one_id(root: Path, pristine: Path) -> None:
    copies = stored(root, "experiences").slice(4, 2)
    raw_append(root, "experiences", copies)
    (finding,) = verify(root).damage
    assert (finding.kind, finding.rows) == ("duplicate", ((ROWS, ROWS + 1),))
    assert verify(root, deep=False).of("duplicate")
    done = repair(root)
    assert set(done.removed["experiences"]) == {ROWS, ROWS + 1}
    check_mended(root, pristine, {}, next_seq=ROWS + 2)
    assert read_lost(root).seqs == ((ROWS, ROWS + 1),)


@pytest.mark.slow
def test_repair_numbers_a_sound_row_that_was_stored_under_a_wrong_number(root: Path, pristine: Path) -> None:
    row = _numbered(root, 300, seq=7)
    raw_append(root, "experiences", row)
    (finding,) = verify(root, deep=False).damage
    assert (finding.kind, finding.rows) == ("seq", ((ROWS, ROWS),))
    assert not repair(root).removed
    assert stored(root, "experiences")["seq"].to_pylist() == list(range(ROWS + 1))
    with Buffer(root) as buffer:
        assert buffer.take([ROWS])["experience_id"].to_pylist() == row["experience_id"].to_pylist()


def _numbered(root: Path, number: int, seq: int) -> pa.Table:
    """One sound stored row, under another id and number."""
    rows = stored(root, "experiences").slice(0, 1)
    schema = rows.schema
    for name, value in (("experience_id", make_row(number).experience_id), ("seq", seq)):
        rows = rows.set_column(schema.get_field_index(name), schema.field(name), pa.array([value]))
    digest = pa.array(row_digests(rows))
    return rows.set_column(schema.get_field_index("digest"), schema.field("digest"), digest)


@pytest.mark.slow
def test_repair_takes_out_a_row_that_does_not_match_its_digest(root: Path, pristine: Path) -> None:
    row = _numbered(root, 300, seq=ROWS)
    at = row.schema.get_field_index("reward")
    raw_append(
        root, "experiences", row.set_column(at, row.schema.field("reward"), pa.array([9.0], pa.float32()))
    )
    assert not verify(root, deep=False).damaged
    (finding,) = verify(root).damage
    assert (finding.kind, finding.rows) == ("digest", ((ROWS, ROWS),))
    done = repair(root)
    check_mended(root, pristine, {}, next_seq=ROWS + 1)
    (copy,) = done.folder.glob("experiences-*.arrow")
    with pa.memory_map(str(copy)) as file:
        assert pa.ipc.open_file(file).read_all()["reward"].to_pylist() == [9.0]
    with Buffer(root, read_only=True) as buffer:
        kept = buffer.read("quarantine").to_pylist()
    (mine,) = [r for r in kept if r["experience_id"] == make_row(300).experience_id]
    assert mine["reason"].startswith("repair: experiences: digest")
    assert json.loads(mine["row"])["reward"] == 9.0


@pytest.mark.slow
def test_repair_takes_out_a_lease_whose_rows_do_not_match_its_digest(root: Path, pristine: Path) -> None:
    event = {
        "event_id": "e",
        "kind": "grant",
        "run_id": RUN,
        "consumer": "trainer",
        "step": 4,
        "epoch": 1,
        "version": 3,
        "seqs": [32, 33],
        "group_ids": [group_of(32)],
        "digest": content_id([32, 34]),
        "reason": "",
    }
    append_rows(root, "leases", [event])
    assert {(f.kind, f.table) for f in verify(root).damage} == {("digest", "leases")}
    repair(root)
    check_mended(root, pristine, {})


@pytest.mark.slow
def test_repair_takes_out_text_that_is_no_json(root: Path, pristine: Path) -> None:
    rows = stored(root, "annotations").slice(0, 1)
    raw_append(
        root,
        "annotations",
        rows.set_column(rows.schema.get_field_index("stats"), rows.schema.field("stats"), pa.array(["{"])),
    )
    (finding,) = verify(root).damage
    assert (finding.kind, finding.table, finding.rows) == ("value", "annotations", ((ROWS, ROWS),))
    repair(root)
    check_mended(root, pristine, {})


# --- what tables say about each other ---------------------------------------------------------------------


def grant(step: int, seqs: list[int], groups: list[str], consumer: str = "trainer") -> dict[str, object]:
    return {
        "event_id": content_id("test", consumer, step, seqs),
        "kind": "grant",
        "run_id": RUN,
        "consumer": consumer,
        "step": step,
        "epoch": 1,
        "version": 3,
        "seqs": seqs,
        "group_ids": groups,
        "digest": content_id(seqs),
        "reason": "",
    }


@pytest.mark.slow
def test_repair_releases_a_lease_of_rows_that_do_not_exist(root: Path, pristine: Path) -> None:
    append_rows(root, "leases", [grant(4, [32, 33, 34, 35, 900], [group_of(32), "run/0-99999999"])])
    report = verify(root)
    (finding,) = report.of("lease")
    assert finding.place == f"{RUN}/trainer/4"
    assert (finding.rows, finding.ids) == (((900, 900),), ("run/0-99999999",))
    assert {f.kind for f in report.damage} == {"lease", "row_counter"}
    done = repair(root)
    assert done.leases == [f"{RUN}/trainer/4"]
    assert done.groups == ["run/0-99999999"]
    check_mended(root, pristine, {}, next_seq=901)
    with Buffer(root) as buffer:
        ledger = Ledger(buffer, RUN, 1)
        assert ledger.find("trainer", 4) is None
        assert "run/0-99999999" in ledger.retired("trainer")
        assert ledger.grant("trainer", 4, 3, [group_result(8)]).seqs == (32, 33, 34, 35)


@pytest.mark.slow
def test_repair_releases_both_leases_of_one_step(root: Path, pristine: Path) -> None:
    append_rows(root, "leases", [grant(3, [32, 33, 34, 35], [group_of(32)])])
    (finding,) = verify(root).damage
    assert (finding.kind, finding.place) == ("double_lease", f"{RUN}/trainer/3")
    repair(root)
    check_mended(root, pristine, {})
    with Buffer(root) as buffer:
        ledger = Ledger(buffer, RUN, 1)
        assert ledger.find("trainer", 3) is None
        assert len(ledger.grant("trainer", 3, 3, [group_result(6), group_result(8)]).group_ids) == 2


@pytest.mark.slow
def test_a_group_leased_for_two_steps_is_a_note_because_a_recipe_may_replay(root: Path) -> None:
    append_rows(root, "leases", [grant(4, [0, 1, 2, 3], [group_of(0)])])
    report = verify(root)
    assert not report.damaged
    assert report.of("double_lease")[0].ids == (group_of(0),)


@pytest.mark.slow
def test_repair_retires_what_a_consumed_step_without_lease_may_have_trained(
    root: Path, pristine: Path
) -> None:
    remove(data_file(root, "leases", 2))  # the attach, then step 0, then step 1
    (finding,) = verify(root).of("consumption")
    assert finding.place == f"{RUN}/trainer/1"
    done = repair(root)
    assert {group_of(8), group_of(12)} <= set(done.groups)
    check_mended(root, pristine, {"leases": {2}})
    with Buffer(root) as buffer:
        ledger = Ledger(buffer, RUN, 1)
        assert {group_of(8), group_of(12)} <= set(ledger.retired("trainer"))
        leased = {group for lease in ledger.leases("trainer") for group in lease.group_ids}
        assert not leased & set(ledger.retired("trainer"))
    assert read_lost(root).leases == (f"{RUN}/trainer/1",)


@pytest.mark.slow
def test_repair_takes_out_an_annotation_of_another_row(root: Path, pristine: Path) -> None:
    raw_append(root, "annotations", annotations_of([5], [make_row(6)]))
    (finding,) = verify(root).damage
    assert (finding.kind, finding.rows) == ("annotation", ((ROWS, ROWS),))
    repair(root)
    check_mended(root, pristine, {})


@pytest.mark.slow
def test_repair_retires_a_group_of_rows_that_do_not_exist(root: Path, pristine: Path) -> None:
    append_rows(root, "groups", [group_row(group_result(20))])
    report = verify(root)
    assert report.of("group")[0].ids == (group_of(80),)
    repair(root)
    check_mended(root, pristine, {}, next_seq=84)
    with Buffer(root) as buffer:
        assert group_of(80) in Ledger(buffer, RUN, 1).retired("another consumer")


@pytest.mark.slow
def test_repair_retires_groups_whose_picture_is_gone(root: Path, pristine: Path) -> None:
    remove(data_file(root, "payloads"))
    (finding,) = verify(root).of("payload")
    assert finding.rows == ((ROWS - 8, ROWS - 1),)
    done = repair(root)
    assert done.payloads == list(finding.ids)
    assert done.groups == [group_of(ROWS - 8), group_of(ROWS - 4)]
    check_mended(root, pristine, {"payloads": {0}})


# --- the folder ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_verify_of_a_sound_buffer_finds_nothing_and_repair_does_nothing(root: Path) -> None:
    before = prints(root)
    report = verify(root)
    assert report.findings == ()
    assert report.rows["experiences"] == ROWS
    assert not repair(root).changed
    assert not (root / "repair").exists()
    assert before <= prints(root)


@pytest.mark.slow
def test_verify_writes_nothing(root: Path) -> None:
    empty(newest_manifest(root, "experiences"))
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    verify(root)
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before


@pytest.mark.slow
def test_leftovers_and_orphan_files_are_notes(root: Path) -> None:
    (root / "groups.lance/data/.tmpABC").write_bytes(b"x")
    (root / "groups.lance/data/0101.lance").write_bytes(b"x")
    report = verify(root)
    assert not report.damaged
    assert [f.kind for f in report.findings] == ["leftover", "orphan_file"]


@pytest.mark.slow
def test_repair_writes_a_missing_marker_again(root: Path, pristine: Path) -> None:
    remove(root / "schema_version")
    assert [f.kind for f in verify(root).damage] == ["schema_version"]
    repair(root)
    check_mended(root, pristine, {})


def test_repair_writes_no_marker_where_no_table_tells_the_version(root: Path) -> None:
    remove(root / "schema_version")
    for manifest in root.glob("*.lance/_versions/*.manifest"):
        empty(manifest)
    with pytest.raises(IntegrityError, match="no file 'schema_version'"):
        repair(root)
    assert not (root / "schema_version").exists()


@pytest.mark.slow
def test_repair_refuses_another_schema_version(root: Path) -> None:
    (root / "schema_version").write_text("1\n")
    assert verify(root).of("schema_version")[0].severity == "fatal"
    with pytest.raises(IntegrityError, match="cannot be repaired: schema_version"):
        repair(root)


@pytest.mark.slow
def test_verify_works_beside_a_living_owner_and_repair_waits_for_it(root: Path) -> None:
    with Buffer(root):
        report = verify(root)
        assert [f.kind for f in report.findings] == ["owner"]
        with pytest.raises(BusyError):
            repair(root)
    assert not verify(root).findings


@pytest.mark.slow
def test_a_dry_run_changes_nothing(root: Path) -> None:
    remove(data_file(root, "experiences"))
    before = prints(root)
    done = repair(root, dry_run=True)
    assert {table: set(rows) for table, rows in done.removed.items()} == {"experiences": set(range(8))}
    assert "would be done" in done.text()
    assert "at most   experiences: 8 rows (0-7)" in done.text()
    assert prints(root) == before


@pytest.mark.slow
def test_the_report_of_a_repair_is_written_down_twice(root: Path) -> None:
    remove(data_file(root, "experiences"))
    done = repair(root)
    written = json.loads((done.folder / "report.json").read_text())
    assert written["lost"]["rows"] == {"experiences": [[0, 7]]}
    assert sorted(written["lost"]["experience_ids"]) == sorted(make_row(n).experience_id for n in range(8))
    with Buffer(root, read_only=True) as buffer:
        rows = [
            json.loads(r["row"]) for r in buffer.read("quarantine").to_pylist() if r["reason"] == "repair"
        ]
    assert rows[0]["lost"] == written["lost"]
    assert "lost      experiences: 8 rows (0-7)" in done.text()


@pytest.mark.slow
def test_everything_at_once_is_mended(root: Path, pristine: Path) -> None:
    for table in BIG_TABLES:
        empty(newest_manifest(root, table))
    remove(data_file(root, "experiences", 1))
    cut(data_file(root, "annotations", 2))
    remove(root / "schema_version")
    repair(root)
    check_mended(
        root,
        pristine,
        {"experiences": set(range(8, 16)), "annotations": set(range(16, 24)), "groups": {4, 5}},
    )


def test_verify_names_the_folder_that_holds_no_buffer(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="there is no buffer at"):
        verify(tmp_path / "nowhere")
    with pytest.raises(MissingFileError, match="there is no buffer at"):
        repair(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
