"""`rft hub` as a command: who reaches it, and that it has the same address when it is started again."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import TokenError
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubClient
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from tests.ports import free_port
from tests.rft_data.conftest import make_experience

SECRET = "a-secret-for-rft-hub"  # noqa: S105


@contextmanager
def served(buffer: Path, port: int) -> Iterator[str]:
    """`rft hub` in a process of its own; its address on this machine."""
    arguments = ["hub", str(buffer), "--host", "0.0.0.0", "--port", str(port)]  # noqa: S104
    process = subprocess.Popen(
        [sys.executable, "-m", "rft_data.cli.app", *arguments],
        env={**os.environ, HUB_TOKEN: SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert "as asked; what was acknowledged is stored" in said


@pytest.mark.heavy
def test_hub_serves_a_buffer_and_comes_back_under_its_address(tmp_path: Path) -> None:
    port, rows = free_port(), [make_experience(n) for n in range(4)]
    explorer = make_token(SECRET, HubRole.EXPLORER, "one")
    with served(tmp_path / "buffer", port) as address, HubClient(address, explorer) as client:
        assert "0.0.0.0" not in address, "nobody can connect to that"  # noqa: S104
        assert client.append(rows[:2]).stored == 2
        with pytest.raises(TokenError, match="is not for the role 'explorer'"):
            client.counts()
    with served(tmp_path / "buffer", port) as again, HubClient(address, explorer) as client:
        assert again == address
        assert client.append(rows).stored == 2, "two are there already"
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        assert len(buffer) == 4


@pytest.mark.parametrize("held", ["", make_token(SECRET, HubRole.READER, "x")])
def test_hub_without_a_secret_says_how_to_give_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    monkeypatch.setenv(HUB_TOKEN, held)
    done = CliRunner().invoke(app, ["hub", str(tmp_path / "buffer")])
    assert done.exit_code != 0
    assert "'rft hub' needs the secret of a hub" in done.output
    assert not (tmp_path / "buffer").exists()
