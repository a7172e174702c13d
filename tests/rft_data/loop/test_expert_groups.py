"""Experts' rows mixed into a policy's batches: real model, buffer, operators and TRL."""

import json
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.codec import from_table
from rft_data.core.heldout import prompt_share
from rft_data.core.schema import EXPERIENCES
from rft_data.exchange.formats import import_into
from rft_data.loop.expert_groups import open_expert_groups
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from rft_data.sampler.accounts import accounts
from rft_data.sampler.mixed_in import experts_prefix, experts_run_id
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.test_online import grants, write_recipe

MIX = [
    "stages.1.algorithm=mix",
    "stages.1.groups_per_step=4",
    "sampler={use: mix, args: {parts: {own: 3, experts: 1}, max_reuse: 50}}",
]


@pytest.mark.heavy
def test_mixed_run_trains_on_experts_at_the_exact_ratio(tmp_path: Path) -> None:
    summary = run_recipe(load_recipe(write_recipe(tmp_path, steps=4), MIX))
    with Buffer(tmp_path / "run" / "buffer", read_only=True) as buffer:
        leases = grants(buffer)
        sources = dict(
            zip(*(buffer.read("experiences")[name].to_pylist() for name in ("seq", "source")), strict=True)
        )
        metrics = buffer.read("metrics").to_pylist()
        assert_accounts_are_those_of_the_run(buffer, summary)
    assert len(leases) == 4
    for lease in leases:
        of_experts = [group for group in lease["group_ids"] if group.startswith(experts_prefix("small"))]
        assert len(of_experts) == 1
        assert sum(sources[seq] == "expert" for seq in lease["seqs"]) == 1
    losses = [row["value"] for row in metrics if row["key"] == "policy_loss"]
    assert len(losses) == 4


@pytest.mark.slow
def test_mixed_run_trains_on_imported_answers(tmp_path: Path) -> None:
    lines = [
        {"question": f"What is 1{n} + {n}?", "answer": f"So it is {10 + 2 * n} #### {10 + 2 * n}"}
        for n in range(9)
    ]
    (tmp_path / "worked.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with Buffer(tmp_path / "run" / "buffer") as buffer:
        assert import_into(buffer, tmp_path / "worked.jsonl").new["experiences"] == 9
    stored = [
        "experts=[{use: stored, where: \"taskset = 'worked'\", limit: 6}]",
        "experience_ops=[{grpo_advantage_mapper: {}}]",
    ]
    summary = run_recipe(load_recipe(write_recipe(tmp_path, steps=2), [*MIX, *stored]))
    with Buffer(tmp_path / "run" / "buffer", read_only=True) as buffer:
        assert_accounts_are_those_of_the_run(buffer, summary)
        rows = {row["seq"]: row for row in from_table(buffer.read("experiences"), EXPERIENCES)}
        leases, [offline] = grants(buffer), buffer.read("stage_rows").to_pylist()
    copies = [row for row in rows.values() if row["run_id"] == "small" and row["source"] == "expert"]
    originals = {row["experience_id"]: row for row in rows.values() if row["run_id"] == "import/worked"}
    assert 0 < len(copies) <= 6
    for copy in copies:
        original = originals[copy["metadata"]["copied_from"]]
        assert copy["messages"] == original["messages"]
        assert prompt_share(copy["messages"][:1]) >= 0.25
    assert set(offline["experience_ids"]) == {row["experience_id"] for row in copies}
    for lease in leases:
        assert sum(rows[seq]["source"] == "expert" for seq in lease["seqs"]) == 1


@pytest.mark.slow
def test_expert_groups_are_opened_once(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        rows = [
            make_experience(i, source="expert", group_id=f"{experts_prefix('run')}{i // 2}") for i in range(6)
        ]
        buffer.append(rows)
        assert open_expert_groups(buffer, rows[0].run_id, "pipeline", 0) == 3
        assert open_expert_groups(buffer, rows[0].run_id, "pipeline", 1) == 0
        groups = buffer.read("groups").to_pylist()
    assert {row["run_id"] for row in groups} == {experts_run_id(rows[0].run_id)}
    assert sorted(seq for row in groups for seq in row["seqs"]) == list(range(6))


def assert_accounts_are_those_of_the_run(buffer: Buffer, summary: dict) -> None:
    [counted] = accounts(buffer, "small").values()
    assert counted.as_dict() == summary["rows"]
    assert (counted.residual, counted.faults) == (0, [])
