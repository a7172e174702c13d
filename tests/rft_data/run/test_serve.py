"""`rft serve` as a process: an unchanged client, and what is stored when the process is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from typer.testing import CliRunner

from explorers.capture.journal import Journal
from explorers.capture.store import TrajectoryStore
from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.cli.serve import _token
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError
from rft_data.core.schema import TABLES
from rft_data.recipe.layers import named_recipe
from rft_data.run.serve import JOURNAL, ServeSettings, check_same_model, recipe_settings
from tests.template import FORK
from tests.waiting import wait_for
from trainers.models.tiny_model import build_tiny_model

TOKEN = "a-token-of-the-test"  # noqa: S105
ASK: Any = [{"role": "user", "content": "2 + 2 ="}]


def test_a_recipes_model_and_sampling_are_served(tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "tiny", seed=3, hidden_size=64, num_layers=2, num_heads=2)
    recipe = named_recipe(Path("sums_explore"))
    found = recipe_settings(recipe, [f"model.path={model}", "explorer.temperature=0.5"], tmp_path)
    assert found["model"] == model
    assert found["sampling"] == Sampling(48, 0.5)
    assert found["max_model_len"] == 128
    with pytest.raises(RecipeError, match=r"explorer\.min_tokens are not applied"):
        recipe_settings(recipe, [f"model.path={model}", "explorer.min_tokens=2"], tmp_path)
    with pytest.raises(RecipeError, match="no explorer with the engine vllm"):
        recipe_settings(recipe, [f"model.path={model}", "explorer.engine.use=transformers"], tmp_path)


def test_a_folder_does_not_serve_one_models_weights_as_anothers(tmp_path: Path) -> None:
    check_same_model(tmp_path, tmp_path / "b", fresh=True)
    check_same_model(tmp_path, tmp_path / "a", fresh=True)
    check_same_model(tmp_path, tmp_path / "b" / ".." / "a", fresh=False)
    with pytest.raises(RecipeError, match=r"serves the model .*a, not .*b; give --dir another"):
        check_same_model(tmp_path, tmp_path / "b", fresh=False)


def test_a_token_that_can_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFT_SERVE_TOKEN", "short")
    with pytest.raises(RecipeError, match="has 5 characters"):
        _token("127.0.0.1")


@pytest.mark.slow
def test_without_a_token_only_this_machine_is_served_and_gets_a_random_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RFT_SERVE_TOKEN", raising=False)
    with pytest.raises(
        RecipeError, match=r"--host 0\.0\.0\.0 is reached by other machines; set RFT_SERVE_TOKEN"
    ):
        _token("0.0.0.0")  # noqa: S104 - it is refused
    started: list[ServeSettings] = []
    monkeypatch.setattr(
        "rft_data.run.serve.serve_until_stopped", lambda settings, say: started.append(settings)
    )
    for _ in range(2):
        CliRunner().invoke(app, ["serve", str(tmp_path), "--dir", str(tmp_path / "served")])
    first, second = started
    assert first.host == "127.0.0.1"
    assert len(first.token) >= 32
    assert first.token != second.token
    assert first.token not in repr(first)


def _loopback() -> str:
    """`::1` where the machine has it."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return "::1"
    except OSError:
        return "127.0.0.1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    pytest.importorskip("vllm")
    model = build_tiny_model(tmp_path / "tiny", seed=3, hidden_size=64, num_layers=2, num_heads=2)
    command = [sys.executable, "-c", f"{FORK}from rft_data.cli.app import main; main()", "serve", str(model)]
    out = tmp_path / "out"
    with out.open("wb") as file, (tmp_path / "err").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path / "served"), "--max-tokens", "8", "--host", _loopback()],
            env={**os.environ, "RFT_SERVE_TOKEN": TOKEN, "VLLM_API_KEY": "of-another-server"},
            stdout=file,
            stderr=log,
        )
        try:
            wait_for(lambda: b"http://" in out.read_bytes() or process.poll() is not None, 120)
            assert process.poll() is None, (tmp_path / "err").read_text()[-3000:]
            yield process, out.read_text().split()[-1]
        finally:
            process.kill()
            process.wait()


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_killed_server_loses_no_acknowledged_trajectory_and_types_the_others(
    server: tuple[subprocess.Popen[bytes], str], tmp_path: Path
) -> None:
    process, address = server
    with httpx.Client(trust_env=False, base_url=address, timeout=60) as http:
        auth = {"authorization": f"Bearer {TOKEN}"}

        def played() -> dict[str, Any]:
            opened: dict[str, Any] = http.post("/trajectories", headers=auth).json()
            client = openai.OpenAI(
                base_url=opened["base_url"], api_key=opened["key"], max_retries=0, http_client=http
            )
            client.chat.completions.create(model="tiny", messages=ASK)
            return opened

        ended = [played() for _ in range(3)]
        stored = []
        for one in ended:
            key = {"authorization": f"Bearer {one['key']}"}
            answer = http.post(f"/trajectories/{one['id']}/end", headers=key, json={"reward": 0.5})
            assert answer.status_code == 200, answer.text
            stored += answer.json()["experience_ids"]
        left = [played(), http.post("/trajectories", headers=auth).json()]
        liked = http.post(f"/trajectories/{left[0]['id']}/reward", headers=auth, json={"reward": 0.25})
        assert liked.json() == {"id": left[0]["id"], "stored": False}
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Buffer(str(tmp_path / "served" / "buffer")) as buffer:
        rows = buffer.read("experiences", ["experience_id", "reward"]).to_pylist()
        assert [row["experience_id"] for row in rows] == stored
        assert [row["reward"] for row in rows] == [0.5] * 3
        store = TrajectoryStore(buffer, Journal(tmp_path / "served" / JOURNAL), "served")
        store.close()
        groups = buffer.read("groups", ["group_id", "outcome", "error", "rewards"]).to_pylist()
        rewards = {row["group_id"]: row["rewards"] for row in groups}
        assert rewards == {left[0]["id"]: [0.25], left[1]["id"]: []}
        assert {(row["outcome"], row["error"]) for row in groups} == {
            ("cancelled", "lost: the server ended before it did")
        }
        tables = {name: buffer.read(name).to_pylist() for name in TABLES}
        assert {name for name, rows in tables.items() if rows} >= {
            "experiences",
            "groups",
            "tasks",
            "versions",
        }
    said = [repr(tables)]  # rows are compressed on the disk
    said += [file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file()]
    everything = "".join(said)
    assert stored[0] in said[0], "what is looked at has what was stored"
    for key in (TOKEN, *(one["key"] for one in (*ended, *left))):
        assert key not in everything
