"""The folders of a run at its hub: which may be read and written, and that nothing complete is replaced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError, RftError, StalledError, TokenError
from rft_data.core.files import file_digest
from rft_data.core.lock import PlainLock
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubClient, HubServer
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.placement.hub.connection import Connection
from rft_data.placement.hub.file_parts import PART
from rft_data.placement.hub.node_files import CopiedFiles, SharedFiles, node_files
from rft_data.placement.hub.run_files import RunFiles, RunFolders, files_below
from rft_data.run.seen_by_hub import hub_copy

NO_RUN = Path("/no/run")
"""Of a run whose folders no test copies: what is copied counts as a model."""


@pytest.fixture
def folders(tmp_path: Path) -> RunFolders:
    model = tmp_path / "model"
    for name, content in (("config.json", "{}"), ("sub/tokens.txt", "abc"), ("manifest.json", "[]")):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(content)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("a secret?")
    return RunFolders(tmp_path / "run", [model])


@pytest.fixture
def hub(tmp_path: Path, folders: RunFolders) -> Iterator[HubServer]:
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer, folders=folders) as hub:
        yield hub


def part(content: bytes) -> pa.Table:
    return pa.table([pa.array([content], PART[0].type)], schema=PART)


def test_listing_has_every_file_with_its_digest_and_the_manifest_last(folders: RunFolders) -> None:
    model = folders.models[0]
    listed = RunFiles(folders).list_files(str(model))
    assert list(listed) == ["config.json", "sub/tokens.txt", "manifest.json"]
    assert listed["sub/tokens.txt"] == (3, file_digest(model / "sub" / "tokens.txt"))
    (model / "sub" / "tokens.txt").write_text("abcd")
    assert RunFiles(folders).list_files(str(model))["sub/tokens.txt"][0] == 4


@pytest.mark.parametrize(
    "folder",
    ["{run}", "{run}/buffer", "{run}/weights/../..", "{run}/weights/", "weights", "/etc", "{run}/weightsX"],
)
def test_folder_that_is_not_shared_is_neither_read_nor_written(folders: RunFolders, folder: str) -> None:
    files, named = RunFiles(folders), folder.format(run=folders.directory)
    for call in (files.list_files, files.begin_folder, files.end_folder):
        with pytest.raises(TokenError, match="none of the folders that this run shares"):
            call(named)


@pytest.mark.parametrize("name", ["../recipe.json", "/etc/passwd", "a/../../b", "", "a\0b"])
def test_name_that_leads_out_of_its_folder_is_refused(folders: RunFolders, name: str) -> None:
    files, weights = RunFiles(folders), str(folders.directory / "weights" / "v1")
    files.begin_folder(weights)
    with pytest.raises(TokenError, match="no name of a file in a folder"):
        files.write_file(part(b"x"), weights, name, 0)
    with pytest.raises(TokenError, match="no name of a file in a folder"):
        files.read_file(str(folders.models[0]), name, 0)


@pytest.mark.parametrize("name", ["../stolen", "/etc/passwd", "a/../../b"])
def test_copies_of_a_hub_stay_in_their_folder(
    hub: HubServer, folders: RunFolders, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: RunFiles, folder: Path) -> dict[str, tuple[int, str]]:
        return {name: (0, "")}

    monkeypatch.setattr(RunFiles, "_listing", listed)
    with HubClient(hub.address, make_token(hub.token, HubRole.EXPLORER, "e")) as client:
        copies = CopiedFiles(client.connection, NO_RUN)
        with pytest.raises(TokenError, match="no name of a file in a folder"):
            copies.fetch(folders.models[0])


def test_a_copy_waits_for_another_process_and_not_for_ever_nor_through_a_link(
    hub: HubServer, folders: RunFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(_: RunFiles, folder: Path) -> dict[str, tuple[int, str]]:
        return {"x": (0, "")}

    monkeypatch.setattr(RunFiles, "_listing", listed)
    monkeypatch.setattr("rft_data.placement.hub.node_files._COPY_DEADLINE_S", 0.05)
    folder = folders.models[0]
    lock = folder.with_name(".copies.lock")
    with HubClient(hub.address, make_token(hub.token, HubRole.EXPLORER, "e")) as client:
        copies = CopiedFiles(client.connection, NO_RUN)
        with (
            PlainLock(lock, alone=True, patience_s=0.0),
            pytest.raises(StalledError, match=r"has copied .* for more than"),
        ):
            copies.fetch(folder)
        lock.unlink()
        lock.symlink_to(folder.with_name("precious"))
        with pytest.raises(RftError, match="is a symbolic link"):
            copies.fetch(folder)
    assert not folder.with_name("precious").exists()


class OtherNode:
    """The connection of a node on which a model has another path than on the hub's; it may be cut."""

    def __init__(self, connection: Connection, theirs: Path) -> None:
        self._connection, self._theirs = connection, str(theirs)
        self.asked: list[str] = []
        self.cut_at = 99

    def call(self, method: str, args: dict[str, Any], *more: Any, deadline_s: float) -> Any:
        return self._connection.call(method, {**args, "folder": self._theirs}, *more, deadline_s=deadline_s)

    def rows(self, method: str, args: dict[str, Any], *, deadline_s: float) -> pa.Table:
        self.asked.append(args["name"])
        if len(self.asked) > self.cut_at:
            raise StalledError("the link is cut")
        return self._connection.rows(method, {**args, "folder": self._theirs}, deadline_s=deadline_s)


@pytest.mark.slow
def test_a_copy_that_was_interrupted_goes_on_with_the_files_it_lacks(
    hub: HubServer, folders: RunFolders, tmp_path: Path
) -> None:
    theirs, ours = folders.models[0], tmp_path / "of-this-node" / "model"
    for name in "abcd":
        (theirs / name).write_text(name * 9)
    with HubClient(hub.address, make_token(hub.token, HubRole.EXPLORER, "e")) as client:
        node = OtherNode(client.connection, theirs)
        copies = CopiedFiles(cast("Connection", node), NO_RUN)
        names = [name for name, _ in files_below(theirs)]
        node.cut_at = len(names) - 2
        with pytest.raises(StalledError):
            copies.fetch(ours)
        [draft] = ours.with_name(".copies").glob(".draft-*")
        (draft / names[0]).write_text("damaged since")
        (draft / "of another model").touch()
        node.asked, node.cut_at = [], 99
        copies.fetch(ours)
    assert node.asked == [names[0], *names[-2:]]
    assert [(name, path.read_bytes()) for name, path in files_below(ours)] == [
        (name, path.read_bytes()) for name, path in files_below(theirs)
    ]
    assert not draft.exists()


def test_files_that_a_hub_shows_stay_in_the_copy(
    tmp_path: Path, folders: RunFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunFiles, "small_files", lambda _: {"../stolen": (0.0, "of a hub")})
    with Buffer(tmp_path / "buffer") as buffer, HubServer(buffer, folders=folders) as hub:
        monkeypatch.setenv(HUB_TOKEN, hub.token)
        with pytest.raises(TokenError, match="no name of a file in a folder"):
            hub_copy(hub.address)


def test_link_that_leads_out_of_the_run_is_not_followed(folders: RunFolders, tmp_path: Path) -> None:
    files, weights = RunFiles(folders), folders.directory / "weights"
    weights.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (weights / "v1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenError, match="none of the folders"):
        files.write_file(part(b"x"), str(weights / "v1"), "a", 0)


def test_models_are_only_read(folders: RunFolders) -> None:
    with pytest.raises(TokenError, match="none of the folders"):
        RunFiles(folders).begin_folder(str(folders.models[0]))


def test_parts_may_come_twice_and_a_complete_folder_is_not_emptied(folders: RunFolders) -> None:
    files, weights = RunFiles(folders), folders.directory / "weights" / "v1"
    weights.mkdir(parents=True)
    (weights / "left-over").touch()
    files.begin_folder(str(weights))
    for content, offset in ((b"abc", 0), (b"def", 3), (b"abc", 0)):
        files.write_file(part(content), str(weights), "sub/x", offset)
    assert (weights / "sub" / "x").read_bytes() == b"abcdef"
    assert files.end_folder(str(weights)).keys() == {"sub/x"}
    files.write_file(part(b"{}"), str(weights), "manifest.json", 0)
    with pytest.raises(ConflictError, match="is complete and may not be written again"):
        files.begin_folder(str(weights))


@pytest.mark.parametrize("folder", ["weights", "weights/v1"])
def test_nothing_in_a_complete_folder_is_replaced(folders: RunFolders, folder: str) -> None:
    files, version = RunFiles(folders), folders.directory / "weights" / "v1"
    version.mkdir(parents=True)
    for name in ("manifest.json", "model"):
        (version / name).write_text(name)
    asked = folders.directory / folder
    with pytest.raises(ConflictError, match="is complete and may not be written again"):
        files.begin_folder(str(asked))
    with pytest.raises(ConflictError, match="is complete and may not be written again"):
        files.write_file(part(b"x"), str(asked), str((version / "model").relative_to(asked)), 0)
    assert (version / "model").read_text() == "model"


def test_node_that_sees_the_folder_copies_nothing(hub: HubServer, tmp_path: Path) -> None:
    with HubClient(hub.address, make_token(hub.token, HubRole.EXPLORER, "e")) as client:
        assert isinstance(node_files(client), SharedFiles)
        (tmp_path / "run" / ".home").write_text("another run's")
        assert isinstance(node_files(client), CopiedFiles)
    assert isinstance(node_files(None), SharedFiles)


@pytest.mark.parametrize("role", [HubRole.EXPLORER, HubRole.READER, HubRole.FEEDBACK, HubRole.TRAINER])
def test_only_the_trainers_process_hands_in_folders(hub: HubServer, tmp_path: Path, role: HubRole) -> None:
    weights = tmp_path / "run" / "weights" / "v1"
    begin = ("begin_folder", {"folder": str(weights)})
    with (
        HubClient(hub.address, make_token(hub.token, role, "x")) as client,
        pytest.raises(TokenError, match=f"is not for the role '{role}'"),
    ):
        client.connection.call(*begin, deadline_s=30)
    with HubClient(hub.address, make_token(hub.token, HubRole.LEARNER, "x")) as client:
        client.connection.call(*begin, deadline_s=30)
    assert weights.is_dir()
