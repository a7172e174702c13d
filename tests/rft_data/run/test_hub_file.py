"""`hub.json` of a run: there while its process has a hub, for its user alone, and good for feedback only."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import MissingFileError, TokenError
from rft_data.core.files import write_manifest
from rft_data.core.lock import Lock
from rft_data.core.roles import RoleSpec
from rft_data.core.rows import Feedback
from rft_data.core.words import RunState
from rft_data.placement.hub import HubClient
from rft_data.placement.hub.access import MAY_CALL, READS
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.placement.hub.run_files import RunFolders
from rft_data.recipe.running import Deadlines, PlacementSection
from rft_data.run.control import RunControl
from rft_data.run.hub_file import offered_hub
from rft_data.run.record import HUB_FILE, LOCK_FILE, RECIPE_FILE, SHOWN, RunRecord, write_record
from rft_data.run.roles import Roles
from tests.rft_data.conftest import make_experience

OTHERS = {call for calls in MAY_CALL.values() for call in calls} - READS - {"add_feedback"}


def roles(folder: Path, buffer: Buffer) -> Roles:
    trainer = RoleSpec("trainer", "nothing:nothing", {}, 1, 0)
    return Roles(
        place=PlacementSection(use="local"),
        run_id="run",
        directory=folder,
        buffer=buffer,
        engine="",
        explorers=[],
        trainer=trainer,
        trainer_threads=None,
        deadlines=Deadlines(),
        folders=RunFolders(folder, shown=SHOWN),
    )


def rft(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.slow
def test_the_token_in_a_runs_folder_gives_feedback_and_a_look_and_is_gone_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / HUB_FILE).write_text("left by a killed run")
    lock = Lock(folder / LOCK_FILE)
    with Buffer(folder / "buffer") as buffer:
        buffer.append([row := make_experience()])
        with ExitStack() as opened:
            roles(folder, buffer).open(opened)
            assert (folder / HUB_FILE).stat().st_mode & 0o777 == 0o600
            offered = offered_hub(folder, str(folder / "buffer"))
            assert offered is not None
            with HubClient(offered.address, offered.token) as client:
                assert client.add_feedback([Feedback(row.experience_id, "ann", "thumb", 1.0)]) == 1
                for call in sorted(OTHERS):
                    with pytest.raises(TokenError, match=f"'{call}' is not for the role 'feedback'"):
                        client.connection.call(call, {}, deadline_s=20)
                monkeypatch.setenv(HUB_TOKEN, offered.token)
                assert rft("status", offered.address).exit_code == MissingFileError.exit_code, "no run yet"
                now = time.time()
                write_record(folder, RunRecord(7, "a", 0, now, RunState.RUNNING, now), durable=False)
                (folder / RECIPE_FILE).write_text('{"name": "small", "run_dir": "/runs/small"}')
                (checkpoint := folder / "checkpoints" / "checkpoint-3").mkdir(parents=True)
                write_manifest(checkpoint, {})
                looked = rft("status", offered.address, "--json")
                assert looked.exit_code == 0, looked.output
                seen = json.loads(looked.stdout)
                assert (
                    seen["run_id"],
                    seen["run_dir"],
                    seen["standing"]["state"],
                    seen["checkpoint"][0],
                ) == (
                    "small",
                    "/runs/small",
                    "running",
                    3,
                )
                assert seen["rows"] == {"experiences": 1, "feedback": 1}
                refused = rft("logs", offered.address)
                assert (
                    "is a hub, which `rft status`, `rft view` and `rft data feedback` take" in refused.output
                )
                monkeypatch.setenv(HUB_TOKEN, f"{offered.token[:-1]}?")
                assert rft("status", offered.address).exit_code == TokenError.exit_code
        assert buffer.counts()["feedback"] == 1
    lock.release()
    assert [path.name for path in folder.iterdir() if "hub" in path.name] == []


def test_a_run_that_begins_again_offers_no_hub_of_its_killed_predecessor(tmp_path: Path) -> None:
    (tmp_path / HUB_FILE).write_text('{"address": "hub://127.0.0.1:1", "token": "t", "buffer": "/b"}')
    with RunControl(tmp_path):
        assert offered_hub(tmp_path, "/b") is None
        assert not (tmp_path / HUB_FILE).exists()
