"""The benchmark of growth measures what it names, on buffers small enough for a test."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import growth
from rft_data.buffer import Buffer
from rft_data.sampler.ledger import Ledger


@pytest.mark.slow
def test_random_leases_are_of_stored_groups_and_none_is_leased_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "LEASES", 8)
    figures = growth._random_leases(tmp_path / "b", 4096)
    with Buffer(tmp_path / "b") as buffer:
        assert len(buffer) == 4096
        leases = Ledger(buffer, "run", 0).leases("trainer")
        rows = buffer.read("experiences", ["seq", "group_id"]).to_pylist()
    by_group: dict[str, list[int]] = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row["seq"])
    leased = [group_id for lease in leases for group_id in lease.group_ids]
    assert len(leases) == 8
    assert len(leases[0].group_ids) == 64
    assert len(leased) == len(set(leased)) > 200
    assert all(
        list(lease.seqs) == [seq for group_id in lease.group_ids for seq in by_group[group_id]]
        for lease in leases
    )
    assert figures["fragments"] >= 1
    assert 0 < figures["p50_ms"] <= figures["p95_ms"]
    assert 0 < figures["index_mb"] < 1
    assert figures["restart_s"] > 0


@pytest.mark.slow
def test_commits_are_timed_one_by_one_and_rows_weighed_on_disk(tmp_path: Path) -> None:
    drift = growth._commit_drift(tmp_path / "drift", 20)
    with Buffer(tmp_path / "drift", read_only=True) as buffer:
        assert len(buffer) == 20 * growth.GROUP
    assert 0 < drift["p50_first_ms"] <= drift["p95_first_ms"] <= drift["longest_ms"]
    assert 0 < drift["rss_first_mb"] <= drift["peak_rss_mb"]
    figures = growth._memory_of_owner(tmp_path / "memory", 1024)
    with Buffer(tmp_path / "memory", read_only=True) as buffer:
        assert len(buffer) == 1024
    raw = 1000 * (4 + 1 + 4)  # ids, mask, logprobs of 1,000 tokens; the mask is all that compresses well
    assert 0.5 * raw < figures["bytes_per_row"] < 2 * raw
    assert figures["peak_rss_mb"] >= figures["rss_before_mb"] > 0


@pytest.mark.slow
def test_process_of_its_own_prints_one_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(sys, "argv", ["growth", "commit_drift", "2"])
    growth.main()
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert all(math.isfinite(value) for value in figures.values())
