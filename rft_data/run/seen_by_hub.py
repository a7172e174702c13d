"""A run as its hub shows it to other machines: a copy of its small files, and clients for the rows.

RFT_HUB_TOKEN has a token, or the run's secret, from which tokens are made; the secret itself is not sent.
"""

from __future__ import annotations

import atexit
import math
import os
import shutil
import threading
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from rft_data.core.errors import MissingFileError, TokenError, UnknownComponentError
from rft_data.core.words import HubRole
from rft_data.placement.hub.access import narrowed
from rft_data.run.record import COPY_FILE

if TYPE_CHECKING:
    from rft_data.placement.hub import HubClient
    from rft_data.placement.hub.shown_buffer import ShownBuffer

_DEADLINE_S = 20.0
_copies: dict[str, Path] = {}
_copied_at: dict[str, float] = {}
_lock = threading.Lock()


def shown_buffer(address: str) -> ShownBuffer:
    """The buffer behind a hub, for reading."""
    from rft_data.placement.hub.shown_buffer import ShownBuffer  # it imports LanceDB

    return ShownBuffer(address, _token(address, HubRole.READER))


def hub_writer(address: str, role: HubRole) -> HubClient:
    """A client that says something. Args: role: what a token is made for where the run's secret is known."""
    from rft_data.placement.hub.client import HubClient  # it imports LanceDB

    return HubClient(address, _token(address, role))


def _token(address: str, role: HubRole) -> str:
    from rft_data.placement.hub.client import HUB_TOKEN

    given = os.environ.get(HUB_TOKEN, "")
    if not given:
        raise TokenError(
            f"the hub at {address} wants a token; set {HUB_TOKEN} to one that `rft token` prints, or to the "
            "run's secret."
        )
    return narrowed(given, role, "rft")


def hub_copy(address: str, *, age_s: float = 0.0) -> Path:
    """A folder with what `rft status` reads of the run behind a hub; it goes with this process.

    Args: age_s: so old it may be.
    Raises: MissingFileError for a hub that no run owns; TokenError; StalledError.
    """
    with _lock:
        if time.monotonic() - _copied_at.get(address, -math.inf) >= age_s:
            _copy(address)
            _copied_at[address] = time.monotonic()
        return _copies[address]


def _copy(address: str) -> None:
    from rft_data.placement.hub.run_files import plain_name  # it imports Arrow

    try:
        with shown_buffer(address) as client:
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
