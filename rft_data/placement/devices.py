"""GPUs of this machine by the roles that see them."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from rft_data.core.errors import RecipeError
from rft_data.core.gpus import visible_devices

_WHOLE = 10_000
"""Shares are counted in 1/10000 of a GPU, as Ray counts them."""


class Devices:
    """Gives GPUs to roles: whole ones, or parts of one that several roles share."""

    def __init__(self, devices: list[str] | None = None) -> None:
        """`devices`: their names as in CUDA_VISIBLE_DEVICES; None: find them when first needed."""
        self._given = devices
        self._free: dict[str, int] | None = None
        self._held: dict[str, dict[str, int]] = {}
        self._users: dict[str, set[str]] = {}
        """The roles that use what is held, by role or group."""
        self._lock = threading.Lock()

    def check(self, wanted: Mapping[str, float]) -> None:
        """Check that the GPUs, all free, are enough for these roles together (GPUs by role).

        Raises: RecipeError if they are not.
        """
        if any(wanted.values()):
            trial = Devices(self._found())
            for role in sorted(wanted, key=lambda role: -wanted[role]):
                trial.reserve(role, wanted[role])

    def reserve(self, role: str, gpus: float, group: str = "") -> list[str]:
        """Reserve `gpus` for `role` until `release`; returns the names of its devices.

        Roles of one `group` get the same ones.
        Raises: RecipeError if there are not enough free.
        """
        holder = group or role
        with self._lock:
            if group in self._held:
                self._users[group].add(role)
                return sorted(self._held[group])
            share = gpu_share(role, gpus)
            if share == 0:
                return []
            if self._free is None:
                self._free = dict.fromkeys(self._found(), _WHOLE)
            each, count = (share, 1) if share < _WHOLE else (_WHOLE, share // _WHOLE)
            fitting = sorted((free, name) for name, free in self._free.items() if free >= each)[:count]
            if len(fitting) < count:
                raise RecipeError(self._refusal(role, gpus))
            chosen = sorted(name for _, name in fitting)
            for name in chosen:
                self._free[name] -= each
            self._held[holder] = dict.fromkeys(chosen, each)
            self._users[holder] = {role}
            return chosen

    def release(self, role: str) -> None:
        """Free the devices of `role`; idempotent."""
        with self._lock:
            holder = next((one for one, users in self._users.items() if role in users), role)
            users = self._users.get(holder, set())
            users.discard(role)
            if users:
                return
            self._users.pop(holder, None)
            for name, share in self._held.pop(holder, {}).items():
                assert self._free is not None  # noqa: S101 - a role holds a device, so the devices are known
                self._free[name] += share

    def _found(self) -> list[str]:
        if self._given is None:
            self._given = visible_devices()
        return self._given

    def _refusal(self, role: str, gpus: float) -> str:
        held = [
            f"'{name}' has {share / _WHOLE:g} of GPU {device}"
            for name, shares in self._held.items()
            for device, share in shares.items()
        ]
        return (
            f"role '{role}' needs {gpus:g} GPUs; this machine shows {len(self._found())} "
            f"({'; '.join(held) or 'none in use by this run'}). Ask for fewer in 'placement', or run where "
            "there are more (CUDA_VISIBLE_DEVICES decides which are seen)."
        )


def gpu_share(role: str, gpus: float) -> int:
    """The GPUs that a role asks for, in 1/10000 of a GPU.

    Raises: RecipeError if `gpus` is neither a whole number nor a part of one.
    """
    share = round(gpus * _WHOLE)
    if share < 0 or (share > _WHOLE and share % _WHOLE):
        raise RecipeError(
            f"role '{role}' asks for {gpus:g} GPUs; wanted is a whole number, or a part of one."
        )
    return share
