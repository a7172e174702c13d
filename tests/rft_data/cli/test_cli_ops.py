"""`rft ops`."""

import json

import pytest

from tests.rft_data.cli.test_cli import rft


@pytest.mark.slow
def test_operators_are_listed_and_shown() -> None:
    listed = rft("ops", "list").stdout
    assert listed.startswith("ours:\n  reward_range_filter")
    assert "Data-Juicer's:\n  alphanumeric_filter" in listed
    assert {"name", "ours", "unit", "about"} == set(json.loads(rft("ops", "list", "--json").stdout)[0])
    shown = rft("ops", "show", "rloo_advantage_mapper").stdout
    assert "arXiv:2402.14740" in shown
    assert "- rloo_advantage_mapper: {}" in shown
    assert json.loads(rft("ops", "show", "rloo_advantage_mapper", "--json").stdout)["unit"] == "group"
    wrong = rft("ops", "show", "rloo")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
