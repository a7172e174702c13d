"""A run of mode `train` beside the run that explores for it: two processes, one buffer, a hub between."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import RecipeError
from rft_data.core.rows import TaskKey
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubServer
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.run.start import run_recipe
from rft_data.tasks.selectors.shuffle import Shuffle
from tests.ports import free_port
from tests.rft_data.placement.hub.conftest import wait_for
from tests.rft_data.run.test_modes import EXPLORE, TRAIN, recipe
from tests.template import FORK

SECRET = "a-secret"  # noqa: S105
GATE = "RFT_TEST_GATE"
ROUND = 4
SERVED = (
    EXPLORE.replace("shuffle", f"'{__name__}:Gated'")
    + f"checkpoint_every: {ROUND}\nserve: {{{{port: {{port}}, idle_s: 3}}}}\n"
)
ATTACHED = TRAIN.replace("{root}/buffer", "hub://127.0.0.1:{port}") + "placement: {{use: local}}\n"
RUN = """
import sys
from pathlib import Path
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
run_recipe(load_recipe(Path(sys.argv[1])))
"""


class Gated(Shuffle):
    """Lets a second round begin only once a file is there."""

    rounds = 0

    def select(self, n: int) -> list[TaskKey]:
        if self.rounds:
            wait_for(lambda: Path(os.environ[GATE]).exists(), 300)
        self.rounds += 1
        return super().select(n)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def explorer(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A run that explores six groups, the last two of them once the gate is open."""
    recipe(tmp_path, SERVED, "looking", "explore", groups=6, port=port)
    environment = {**os.environ, HUB_TOKEN: SECRET, GATE: str(tmp_path / "gate")}
    command = [sys.executable, "-c", f"{FORK}{RUN}", str(tmp_path / "looking.yaml")]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], env=environment) as process:
        yield process
        process.kill()


@pytest.mark.heavy
def test_a_run_trains_on_groups_while_another_process_explores_them(
    tmp_path: Path, port: int, explorer: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HUB_TOKEN, make_token(SECRET, HubRole.TRAINER, "learning"))
    loaded = recipe(tmp_path, ATTACHED, "learning", "train", port=port)
    wait_for(lambda: listens(port) or explorer.poll() is not None, 200)

    def open_gate() -> None:  # once two steps are trained, on what was explored before it was opened
        wait_for(lambda: (tmp_path / "learning" / "checkpoints" / "checkpoint-2").is_dir(), 200)
        (tmp_path / "gate").touch()

    opening = threading.Thread(target=open_gate)
    opening.start()
    summary = run_recipe(loaded)
    opening.join()
    assert summary["groups"]["trained"] == 6
    assert summary["rows"]["trained"] == 12
    assert summary["consumed_steps"] == 3
    assert Path(str(summary["model"])).is_dir()
    with pytest.raises(RecipeError, match="are trained on by a run already"):
        run_recipe(recipe(tmp_path, ATTACHED, "learning-too", "train", port=port))
    assert explorer.wait(60) == 0, "it ends when no trainer is connected any more"
    with Buffer(tmp_path / "buffer") as buffer:
        leases = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]
        assert [lease["step"] for lease in leases] == [0, 1, 2]
        assert len({group for lease in leases for group in lease["group_ids"]}) == 6
        runs = buffer.read("runs").column("run_id").to_pylist()
        assert runs[:2] == ["looking", "learning"]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            time.sleep(0.2)
            return False
    return True


@pytest.mark.slow
def test_what_cannot_train_beside_another_run_is_refused(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(HUB_TOKEN, raising=False)
    with pytest.raises(RecipeError, match="'serve' needs the secret of a hub"):
        run_recipe(recipe(tmp_path, SERVED, "looking", "explore", groups=6, port=port))
    attached = recipe(tmp_path, ATTACHED, "learning", "train", port=port)
    with pytest.raises(RecipeError, match=f"environment variable {HUB_TOKEN} is not set"):
        run_recipe(attached)
    monkeypatch.setenv(HUB_TOKEN, make_token(SECRET, HubRole.TRAINER, "learning"))
    with pytest.raises(RecipeError, match="holds the token of a client"):
        run_recipe(recipe(tmp_path, SERVED, "looking", "explore", groups=6, port=port))
    explored = {"run_id": "looking", "recipe_hash": "", "code_version": "", "attempt": 0}
    with (
        Buffer(tmp_path / "other") as buffer,
        HubServer(buffer, port=port, token=SECRET),
    ):
        with pytest.raises(RecipeError, match="has no run 'looking' of mode 'explore'"):
            run_recipe(attached)
        buffer.add_rows("runs", [{**explored, "recipe": {"mode": "explore", "groups": 5}}])
        with pytest.raises(RecipeError, match="plays groups for 5 uses; 3 steps of 2 groups need 6"):
            run_recipe(attached)
