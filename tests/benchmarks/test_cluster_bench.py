"""The benchmark of a cluster, few and short, and that its counts can fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cluster.__main__ import main
from benchmarks.cluster.processes import lost
from benchmarks.cluster.replay import Replay, store_pool
from benchmarks.rows import GROUP
from rft_data.buffer import Buffer

pytestmark = pytest.mark.slow


@pytest.mark.heavy
def test_explorers_hub_and_faults_go_through(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cryptography")
    main(["--quick"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    figures, bars = found["figures"], {bar["name"]: bar["value"] for bar in found["bars"]}
    assert {name: bars[name] for name in ("node_kill_lost", "link_cut_lost", "bytes_in_clear")} == {
        "node_kill_lost": 0,
        "link_cut_lost": 0,
        "bytes_in_clear": 0,
    }
    assert min(figures["node_kill_acknowledged"], figures["link_cut_acknowledged"]) >= 2 * GROUP
    assert min(figures["bytes_in_clear_without_tls"], figures["bytes_under_tls"]) > 0
    assert figures["2"]["rows_per_s"] > 0


def test_rows_that_are_missing_or_in_part_of_a_group_are_counted(tmp_path: Path) -> None:
    store_pool(tmp_path / "pool", 20)
    replay = Replay(tmp_path / "pool", "e0")
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append(replay.group())
        assert lost(tmp_path, {"run/e0-00000000"}, GROUP) == 0
        assert lost(tmp_path, {"run/e0-00000000", "run/e0-00000001"}, GROUP) == GROUP
        buffer.append(replay.group().slice(0, 3))
        assert lost(tmp_path, {"run/e0-00000000"}, GROUP) == 3, "part of a group is stored"
