"""Copies of models on a node, by their content: what changed is sent, and what did not is not sent again."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import ConflictError
from rft_data.core.words import HubRole
from rft_data.placement.hub import HubClient, HubServer
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.connection import Connection
from rft_data.placement.hub.node_files import CopiedFiles
from rft_data.placement.hub.run_files import RunFolders, files_below


class Node:
    """A node on which models have other paths than where they come from, and its files."""

    def __init__(self, connection: Connection, theirs: Path) -> None:
        self._connection, self.theirs = connection, theirs
        self.sent: list[str] = []
        """Names of the files that were sent since `fetch` began."""
        self.files = CopiedFiles(cast("Connection", self), Path("/no/run"))

    def call(self, method: str, args: dict[str, Any], *more: Any, deadline_s: float) -> Any:
        return self._connection.call(
            method, {**args, "folder": str(self.theirs)}, *more, deadline_s=deadline_s
        )

    def rows(self, method: str, args: dict[str, Any], *, deadline_s: float) -> pa.Table:
        self.sent.append(args["name"])
        return self._connection.rows(method, {**args, "folder": str(self.theirs)}, deadline_s=deadline_s)

    def fetch(self, ours: Path) -> list[str]:
        """Fetch, and check that the copy is equal; returns the files that were sent."""
        self.sent = []
        self.files.fetch(ours)
        assert contents(ours) == contents(self.theirs)
        return self.sent


def contents(folder: Path) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in files_below(folder)}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    model = tmp_path / "home" / "model"
    for name in ("config.json", "sub/tokens.txt", "model.safetensors"):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        (model / name).write_text(f"the first {name}")
    (tmp_path / "run").mkdir()
    folders = RunFolders(tmp_path / "run", [model, tmp_path / "home" / "other"])
    with (
        Buffer(tmp_path / "buffer") as buffer,
        HubServer(buffer, folders=folders) as hub,
        HubClient(hub.address, make_token(hub.token, HubRole.EXPLORER, "e")) as client,
    ):
        yield Node(client.connection, model)


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return tmp_path / "node" / "models" / "base"


@pytest.mark.slow
def test_of_a_model_that_was_changed_in_place_the_changed_files_are_sent(node: Node, ours: Path) -> None:
    assert sorted(node.fetch(ours)) == ["config.json", "model.safetensors", "sub/tokens.txt"]
    assert node.fetch(ours) == []
    older, config = ours.resolve(), node.theirs / "config.json"
    before = config.read_text()
    config.write_text(before.replace("first", "other"))  # of the same size
    assert node.fetch(ours) == ["config.json"]
    assert (older / "config.json").read_text() == before, "who reads the older copy goes on reading it"
    (node.theirs / "sub" / "tokens.txt").unlink()
    assert node.fetch(ours) == []


@pytest.mark.slow
def test_two_models_under_one_path_take_turns_without_being_sent_again(node: Node, ours: Path) -> None:
    other = node.theirs.with_name("other")
    other.mkdir()
    (other / "config.json").write_text("another's")
    first = node.theirs
    node.fetch(ours)
    node.theirs = other
    assert node.fetch(ours) == ["config.json"]
    for node.theirs in (first, other):
        assert node.fetch(ours) == []
    assert node.fetch(ours.with_name("the same by another name")) == []


@pytest.mark.slow
def test_a_copy_goes_when_no_path_leads_to_it_and_it_is_not_the_last_one(node: Node, ours: Path) -> None:
    found = []
    for number in range(4):
        (node.theirs / "config.json").write_text(f"number {number}")
        node.fetch(ours)
        found.append(ours.resolve())
    assert [copy.exists() for copy in found] == [False, False, True, True]
    assert sorted(path.name for path in (ours.parent / ".copies").iterdir()) == sorted(
        name for copy in found[2:] for name in (copy.name, f"{copy.name}.json")
    )


@pytest.mark.slow
def test_a_copy_that_was_changed_on_the_node_is_mended(node: Node, ours: Path) -> None:
    node.fetch(ours)
    (ours / "config.json").write_text("damaged")
    assert node.fetch(ours) == ["config.json"]
    (ours / "sub" / "tokens.txt").unlink()
    assert node.fetch(ours) == ["sub/tokens.txt"]


@pytest.mark.slow
def test_a_copy_of_an_older_release_is_taken_over(node: Node, ours: Path) -> None:
    ours.mkdir(parents=True)
    mark = ours.with_name(f".{ours.name}.copied")
    mark.touch()
    (ours / "model.safetensors").write_text("the first model.safetensors")
    (ours / "config.json").write_text("of before")
    assert sorted(node.fetch(ours)) == ["config.json", "sub/tokens.txt"]
    assert (ours.is_symlink(), mark.exists()) == (True, False)


@pytest.mark.slow
@pytest.mark.parametrize("linked", [False, True])
def test_a_model_of_the_node_itself_is_used_if_it_is_equal_and_else_refused(
    node: Node, ours: Path, linked: bool
) -> None:
    own = ours.with_name("elsewhere") if linked else ours
    for name, content in contents(node.theirs).items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(content)
    if linked:
        ours.symlink_to(own)
    assert node.fetch(ours) == []
    (own / "config.json").write_text("the node's own")
    with pytest.raises(ConflictError, match="was not copied from there"):
        node.files.fetch(ours)
    assert (own / "config.json").read_text() == "the node's own"
