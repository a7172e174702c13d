"""What a run sets for the libraries of its processes."""

from __future__ import annotations

import pytest

from rft_data.run.build import PROCESS_ENVIRONMENT


def test_libraries_send_no_reports_of_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = pytest.importorskip("vllm.envs")
    monkeypatch.delenv("VLLM_NO_USAGE_STATS", raising=False)
    for name, value in PROCESS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert envs.environment_variables["VLLM_NO_USAGE_STATS"]()
    assert PROCESS_ENVIRONMENT["HF_HUB_DISABLE_TELEMETRY"] == "1"
