"""Where the front of an A/B test listens: refusals come before any explorer is started."""

import socket
import tempfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from rft_data.core.arms import Arm
from rft_data.core.errors import BusyError, RecipeError
from rft_data.core.roles import RoleSpec
from rft_data.run.served_front import FRONT_FILE, AbSettings, ServedFront

TOKEN = "a token of enough characters"  # noqa: S105
SETTINGS = AbSettings(share=0.5, steps_behind=1, seed=0)


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def front(name: str = "explorer", folder: Path = Path(), **args: Any) -> ServedFront:
    plan = {"workflow": {"use": "served", "args": {"token": TOKEN, **args}}}
    explorers = [RoleSpec(f"{name}-{n}", "some:thing", arguments={"plan": plan}) for n in range(3)]
    return ServedFront(SETTINGS, explorers, folder)


def test_explorers_listen_at_sockets_of_their_own_and_the_last_is_the_old_arm() -> None:
    with front(port=0) as made:
        args = [spec.arguments["plan"]["workflow"]["args"] for spec in made.specs()]
        folder = Path(args[0]["socket"]).parent
        assert folder.stat().st_mode & 0o777 == 0o700, "of this user alone"
    assert [one["arm"] for one in args] == [Arm.NEW, Arm.NEW, Arm.OLD]
    assert len({one["socket"] for one in args}) == 3
    assert {one["token"] for one in args} == {TOKEN}
    assert not folder.exists()


def test_the_sockets_of_a_run_that_was_killed_are_gone_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = tempfile.TemporaryDirectory()
    monkeypatch.setattr(tempfile, "tempdir", short.name)
    (other := Path(short.name) / "rft-ab-of-another-run").mkdir()
    front(folder=tmp_path).__enter__()  # killed
    (left,) = [one for one in other.parent.iterdir() if one != other]
    with front(folder=tmp_path):
        assert not left.exists()
        assert other.exists()
        assert len(list(other.parent.iterdir())) == 2
    assert list(other.parent.iterdir()) == [other]
    assert not list(tmp_path.iterdir()), "nor anything in the run's folder"
    (tmp_path / FRONT_FILE).write_text(short.name)
    with front(folder=tmp_path):
        assert other.exists(), "what is no folder of ours stays"
    short.cleanup()


def test_a_port_that_is_taken_is_one_error_and_is_free_again_after_the_front() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with front(port=port) as made, pytest.raises(BusyError, match=f"127.0.0.1:{port} cannot be"):
            made.start()


@pytest.mark.slow
def test_clients_are_told_to_come_again_while_explorers_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "rft_data.run.served_front"), front() as made:
        made.start()
        said = next(text for text in caplog.messages if "/trajectories" in text)
        address = said.split(" at ")[1].split("/trajectories")[0]
        answer = httpx.post(f"{address}/trajectories", headers={"authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert httpx.get(f"{address}/health").status_code == 503
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{address}/health")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"port": "8009"}, "port is '8009'; wanted a whole number from 0 to 65535"),
        ({"port": 70000}, "port is 70000; wanted"),
        ({"port": True}, "port is True; wanted"),
        ({"host": 5}, "host is 5; wanted a name or an address"),
        ({"token": "short"}, "token is shorter than 16 characters"),
    ],
)
def test_what_is_no_address_is_refused(args: dict[str, Any], message: str) -> None:
    with front(**args) as made, pytest.raises(RecipeError, match=message):
        made.start()


def test_a_folder_too_deep_for_sockets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(RecipeError, match="107 bytes at most; set TMPDIR to a shorter folder"):
        front().__enter__()
    assert not list(deep.iterdir())
