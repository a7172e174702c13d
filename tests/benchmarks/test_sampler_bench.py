"""The sampler's benchmark times whole leases of every policy, and says which bound each is held to."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import sampler as benchmark
from rft_data.sampler.make import POLICIES


@pytest.mark.parametrize("use", benchmark.POLICIES)
def test_every_decision_is_a_whole_lease_of_groups_that_wait(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "DECISIONS", 4)
    sampler, steps, _ = benchmark.filled(use, 800)
    others = 200 if use == "mix" else 0
    before = sampler.conservation()
    assert (before["open"], before["ready"]) == ((800 - others) // 8, others + (800 - others) * 7 // 8)
    spent = benchmark.decisions(sampler, steps)
    assert {name: len(times) for name, times in spent.items()} == dict.fromkeys(spent, 4)
    leases = sampler._ledger.leases()
    assert [len(lease.group_ids) for lease in leases] == [benchmark.BATCH] * 4
    leased = [group_id for lease in leases for group_id in lease.group_ids]
    after = sampler.conservation()
    assert after["trained"] == len(set(leased))
    assert len(set(leased)) == len(leased) or use == "replay"
    assert after["ready"] == before["ready"] + 4 * benchmark.BATCH - after["trained"]
    assert steps.latest == 4


@pytest.mark.slow
def test_every_policy_is_measured_and_held_to_its_bound(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert set(benchmark.POLICIES) == set(POLICIES)
    monkeypatch.setattr(benchmark, "DECISIONS", 2)
    monkeypatch.setattr(sys, "argv", ["sampler", "--groups", "400", "--policies", "fifo", "replay"])
    benchmark.main()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [bar["name"] for bar in said["bars"]] == ["sampler_lease_ms_fifo", "sampler_lease_ms_replay"]
    assert all(bar["bound"] == 5.0 for bar in said["bars"])
    assert [bar["value"] for bar in said["bars"]] == [
        pytest.approx(said["figures"][use]["lease"], abs=1e-3) for use in ("fifo", "replay")
    ]
