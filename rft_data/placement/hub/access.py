"""Rights at a hub: a token for each client, made from the run's secret, names its role.

A token is `ROLE.NAME.MAC`; the hub keeps no list of them, it computes the MAC again. The secret itself is the
owner's token.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from rft_data.core.errors import RecipeError, TokenError
from rft_data.core.words import FeedbackKey, HubRole

_MAC_LETTERS = 64

READS = frozenset({"read", "tail", "take", "leased", "payload", "counts", "lost_rows", "small_files"})
_FILES = frozenset({"mark", "list_files", "read_file"})
_LEDGER_READS = frozenset({"leases", "retired", "consumed", "is_consumed"})
_LEDGER = _LEDGER_READS | {"attach", "find", "grant", "release", "retire", "consume"}

MAY_CALL: Mapping[HubRole, frozenset[str]] = {
    HubRole.EXPLORER: frozenset({"append", "add_rows", "payload"}) | _FILES,
    HubRole.LEARNER: READS | _LEDGER_READS | _FILES | {"begin_folder", "write_file", "end_folder"},
    HubRole.READER: READS | _LEDGER_READS | _FILES,
    HubRole.FEEDBACK: READS | {"add_feedback"},
    HubRole.CURATOR: READS | {"add_feedback", "readmit"},
    HubRole.TRAINER: READS | _LEDGER | _FILES | {"add_rows"},
}
"""The calls of each role; the owner may make all."""
CURATED = frozenset({FeedbackKey.EDIT, FeedbackKey.QUARANTINE, FeedbackKey.RETIRE_TASK})
"""Keys of feedback that add rows to training or take tasks and rows away: for curators."""
MAY_WRITE: Mapping[HubRole, frozenset[str]] = {
    HubRole.EXPLORER: frozenset({"quarantine"}),
    HubRole.TRAINER: frozenset({"runs", "versions", "metrics", "trained_tokens", "task_state"}),
}
"""The tables to which a role may add rows; the owner may to all of `buffer_calls.ROW_TABLES`."""


@dataclass(frozen=True, slots=True)
class HubAccess:
    """Address and token with which a client reaches a hub."""

    address: str
    token: str = field(repr=False)
    """A client's, or the secret, which is the owner's."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A client, as its token names it."""

    role: HubRole
    name: str
    """Name of one client; what is shared out among clients is counted under role and name."""

    def check(self, method: str, args: Mapping[str, object]) -> None:
        """Check that this client may make a call.

        Raises: TokenError saying which roles may.
        """
        if self.role == HubRole.OWNER:
            return
        if method not in MAY_CALL[self.role]:
            able = [HubRole.OWNER, *(role for role, calls in MAY_CALL.items() if method in calls)]
            raise TokenError(
                f"hub call '{method}' is not for the role '{self.role}' of this client's token; it is for: "
                f"{', '.join(able)}. Make a token of such a role with `rft token`."
            )
        if method == "add_feedback" and self.role == HubRole.FEEDBACK:
            self._check_keys(args.get("feedback"))
        table = args.get("name")
        if method == "add_rows" and table not in MAY_WRITE[self.role]:
            raise TokenError(
                f"a client with the role '{self.role}' may not add rows to table '{table}', only to "
                f"{', '.join(sorted(MAY_WRITE[self.role]))}; use a token of another role (`rft token`)."
            )

    def _check_keys(self, feedback: object) -> None:
        """Raises: TokenError for feedback under a key that only a curator may use."""
        rows = feedback if isinstance(feedback, list) else []
        keys = {one.get("key") for one in rows if isinstance(one, Mapping)}
        if wrong := sorted(CURATED & keys):
            raise TokenError(
                f"feedback under the key '{wrong[0]}' is not for the role '{self.role}' of this client's "
                f"token; it is for: {HubRole.OWNER}, {HubRole.CURATOR}. Make a token of such a role with "
                "`rft token`."
            )


def make_token(secret: str, role: HubRole, name: str) -> str:
    """The token of a client of this role and name; the secret itself for the owner.

    Raises: RecipeError for a name that a token cannot hold.
    """
    if role == HubRole.OWNER:
        return secret
    if not (name and name.isascii() and name.isprintable()):
        raise RecipeError(f"{name!r} is no name of a hub's client; give printable ASCII characters.")
    return f"{role}.{name}.{_mac(secret, role, name)}"


def narrowed(token: str, role: HubRole, name: str) -> str:
    """A token for this role: made from `token` if that is a secret, else `token` as it is."""
    return token if parse_token(token) is not None else make_token(token, role, name)


def holder(token: str, secret: str) -> Holder | None:
    """The client that presents a token; None for a wrong one. Compares in constant time."""
    if hmac.compare_digest(token.encode(), secret.encode()):
        return Holder(HubRole.OWNER, "owner")
    claimed = parse_token(token)
    if claimed is None:
        return None
    right = make_token(secret, claimed.role, claimed.name)
    return claimed if hmac.compare_digest(token.encode(), right.encode()) else None


def parse_token(token: str) -> Holder | None:
    """The client that a token says it is for; None if it has not the form of a client's token."""
    role, _, rest = token.partition(".")
    name, _, mac = rest.rpartition(".")
    if role not in MAY_CALL or not name or len(mac) != _MAC_LETTERS:
        return None
    return Holder(HubRole(role), name)


def _mac(secret: str, role: HubRole, name: str) -> str:
    return hmac.new(secret.encode(), f"rft-data hub {role} {name}".encode(), hashlib.sha256).hexdigest()
