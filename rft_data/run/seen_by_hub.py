"""A run as its hub shows it to other machines: a copy of its small files, and a client for the rows."""

from __future__ import annotations

import atexit
import os
import shutil
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from rft_data.core.errors import MissingFileError, UnknownComponentError
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import narrowed
from rft_data.run.record import COPY_FILE

if TYPE_CHECKING:
    from rft_data.placement.hub import HubClient

_DEADLINE_S = 20.0
_copies: dict[str, Path] = {}


def hub_client(address: str) -> HubClient:
    """A client that reads; RFT_HUB_TOKEN has its token, or the run's secret, which is not sent."""
    from rft_data.placement.hub.client import HUB_TOKEN, HubClient  # it imports LanceDB

    return HubClient(address, narrowed(os.environ.get(HUB_TOKEN, ""), HubRole.READER, "rft status"))


def hub_copy(address: str) -> Path:
    """A folder with what `rft status` reads of the run behind a hub, as it is now; it goes with this process.

    Raises: MissingFileError for a hub that no run owns; TokenError; StalledError.
    """
    from rft_data.placement.hub.run_files import plain_name  # it imports Arrow

    try:
        with hub_client(address) as client:
            files = client.connection.call("small_files", {}, deadline_s=_DEADLINE_S)
    except UnknownComponentError as err:
        raise MissingFileError(
            f"the hub at {address} serves a buffer that no run owns: no run to show."
        ) from err
    if address not in _copies:
        _copies[address] = Path(mkdtemp(prefix="rft-run-"))
        atexit.register(shutil.rmtree, _copies[address], ignore_errors=True)
    folder = _copies[address]
    for old in [path for path in folder.rglob("*") if path.is_file()]:
        if str(old.relative_to(folder)) not in files:
            old.unlink()
    for name, (changed_at, text) in files.items():
        path = folder / plain_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (time.time(), changed_at))
    (folder / COPY_FILE).write_text(address)
    return folder
