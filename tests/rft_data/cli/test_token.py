"""Tokens on the command line, and feedback sent with one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubServer
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from tests.rft_data.conftest import make_experience

NAMED = ["token", "feedback", "--name", "grader-1"]


@pytest.mark.slow
def test_feedback_is_sent_with_a_token_for_feedback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = make_experience(0)
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer, token="a-secret") as hub:  # noqa: S106
        buffer.append([row])
        said = ["data", "feedback", "add", "--buffer", hub.address, "--experience", row.experience_id]
        said += ["--author", "me", "--value"]
        monkeypatch.setenv(HUB_TOKEN, "a-secret")
        token = CliRunner().invoke(app, NAMED).stdout.strip()
        assert token == make_token("a-secret", HubRole.FEEDBACK, "grader-1")
        assert CliRunner().invoke(app, [*said, "1"]).exit_code == 0, "the secret is narrowed"
        monkeypatch.setenv(HUB_TOKEN, token)
        assert CliRunner().invoke(app, [*said, "2"]).exit_code == 0
        monkeypatch.setenv(HUB_TOKEN, make_token("a-secret", HubRole.EXPLORER, "x"))
        refused = CliRunner().invoke(app, [*said, "3"])
        assert refused.exit_code == 4
        assert "not for the role 'explorer'" in refused.stderr
        assert buffer.read("feedback").column("value").to_pylist() == [1.0, 2.0]


@pytest.mark.parametrize("held", ["", make_token("a-secret", HubRole.READER, "x")])
def test_a_token_is_made_of_a_secret_only(monkeypatch: pytest.MonkeyPatch, held: str) -> None:
    monkeypatch.setenv(HUB_TOKEN, held)
    refused = CliRunner().invoke(app, NAMED)
    assert refused.exit_code == 2
    assert "made from the secret" in refused.stderr
