"""The address of a running run's hub: `hub.json` in its folder, with tokens for feedback and for curation.

It is there while the run's process has a hub of its own, and only its user may read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rft_data.core.words import HubRole
from rft_data.placement.hub.access import HubAccess, make_token
from rft_data.run.record import HUB_FILE, held

_CLIENT = "folder"
_ROLES = (HubRole.FEEDBACK, HubRole.CURATOR)


@contextmanager
def hub_offered(run_dir: Path, location: str, address: str, secret: str) -> Iterator[None]:
    """Have the file inside the block. Args: location: of the buffer that the hub serves."""
    path = run_dir / HUB_FILE
    draft = path.with_name(f".{HUB_FILE}")
    tokens = {str(role): make_token(secret, role, _CLIENT) for role in _ROLES}
    content = json.dumps({"address": address, "tokens": tokens, "buffer": _whole(location)})
    with suppress(FileNotFoundError):
        draft.unlink()
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    draft.rename(path)
    try:
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()


def offered_hub(run_dir: Path, location: str, role: HubRole = HubRole.FEEDBACK) -> HubAccess | None:
    """Access to the hub of a run whose process lives and has this buffer; None without one.

    Args: role: of the token: FEEDBACK or CURATOR.
    A copy of the buffer names the same run, and a folder may hold another one meanwhile.
    """
    try:
        found = json.loads((run_dir / HUB_FILE).read_text())
        offered = HubAccess(str(found["address"]), str(found["tokens"][role]))
        same = found["buffer"] == _whole(location)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return offered if same and held(run_dir) else None


def _whole(location: str) -> str:
    return location if "://" in location else str(Path(location).resolve())
