"""The run's side of `group.py`: broadcasts a published version to the explorers that ask for it.

The sender waits a little for every explorer that was offered a version, so that all get it in one broadcast.
An explorer that comes later, because it died and was started again, gets it then. Where a group fails
although its explorers live, some of them cannot reach each other: from then on each of them is sent to by
itself, and an explorer that cannot be reached at all delays no other.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch.distributed as dist

from explorers.transports.arrival import is_needed
from explorers.transports.gpus import free_gpu, seen_gpus
from explorers.transports.group import LOOK_S, STEP_S, Group, answer_key, asked_key, asker, gpus_key
from rft_data.core.errors import EngineError, IntegrityError, RftError
from rft_data.core.files import manifest_bytes, parse_manifest
from rft_data.core.rows import WeightRef

log = logging.getLogger(__name__)

_GATHER_S = 10.0
"""How long those who ask wait for others that were offered the same version."""


class GroupSender:
    """Sends published folders: to one group at a time, and beside it to explorers by themselves."""

    def __init__(
        self, backend: str, host: str, gather_s: float = _GATHER_S, *, or_gloo: bool = False
    ) -> None:
        """Open the store at `host`, an address of this machine that the explorers can reach.

        Args: or_gloo: send by gloo when this process sees no GPU but the explorers'; else that is an error.
        """
        listening = socket.create_server((host, 0))
        self.host, self.port = host, int(listening.getsockname()[1])
        self._store = dist.TCPStore(
            host,
            self.port,
            None,
            True,
            timedelta(seconds=STEP_S),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        self._backend = backend
        self._or_gloo = or_gloo
        self._taken: set[str] = set()
        """GPUs of explorers that have asked by now."""
        self._told = False
        self._gather_s = gather_s
        self._wanted: dict[str, WeightRef] = {}
        """Versions that explorers were offered last and have not got, by explorer."""
        self._answered: set[str] = set()
        self._failed: dict[WeightRef, frozenset[str]] = {}
        """The askers that a version did not reach as a group."""
        self._alone: dict[str, str] = {}
        """Explorers that are sent to by themselves, each as the asker that it was then."""
        self._groups = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"{backend}-sender", daemon=True)
        self._thread.start()

    def offer(self, ref: WeightRef, explorers: Sequence[str]) -> None:
        """Have these explorers find the version when they ask for it; returns at once."""
        with self._changed:
            self._wanted |= dict.fromkeys(explorers, ref)
            self._changed.notify()

    def close(self) -> None:
        """Stop; idempotent. A broadcast that is under way ends with the process."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _serve(self) -> None:
        since: dict[WeightRef, float] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                wanted = dict(self._wanted)
            due = self._due(wanted, since)
            if due is None:
                time.sleep(LOOK_S)
                continue
            ref, here = due
            self._answered.update(here.values())
            if here.keys() <= self._alone.keys():
                for name, wait in here.items():
                    sending = (ref, {name: wait}, self._new_group())
                    threading.Thread(target=self._send_alone, args=sending, daemon=True).start()
                continue
            del since[ref]
            if self._send(self._store, ref, here, self._new_group()):
                self._served(ref, here)
            elif len(here) > 1:
                self._failed[ref] = frozenset(map(asker, here.values()))

    def _due(
        self, wanted: Mapping[str, WeightRef], since: dict[WeightRef, float]
    ) -> tuple[WeightRef, dict[str, str]] | None:
        """A version to send now, and the waits of those who get it; None if nothing is due.

        Args: since: when the first asked for a version, of those whose waits go on; it is changed.
        """
        for ref in sorted(set(wanted.values()), key=lambda ref: ref.version):
            offered = [name for name, one in wanted.items() if one == ref]
            here = {name: wait for name in offered if (wait := self._waiting(name, ref.version))}
            self._part(ref, here)
            if alone := {name: wait for name, wait in here.items() if name in self._alone}:
                return ref, alone
            if not here:
                continue
            began = since.setdefault(ref, time.monotonic())
            together = [name for name in offered if name not in self._alone]
            if len(here) == len(together) or time.monotonic() >= began + self._gather_s:
                return ref, here
        return None

    def _part(self, ref: WeightRef, here: Mapping[str, str]) -> None:
        """Decide who is sent to by itself, of those that ask for a version."""
        asking = {name: asker(wait) for name, wait in here.items()}
        for name, one in asking.items():
            if self._alone.get(name, one) != one:  # it was started again, perhaps elsewhere
                del self._alone[name]
        failed = self._failed.get(ref, frozenset())
        if failed and failed.issubset(asking.values()):
            del self._failed[ref]
            parted = {name: one for name, one in asking.items() if one in failed}
            self._alone |= parted
            log.warning(
                "explorers %s live, but do not all reach each other; from now on each is sent to by itself",
                ", ".join(parted),
            )

    def _new_group(self) -> str:
        self._groups += 1
        return str(self._groups)

    def _send_alone(self, ref: WeightRef, wait: Mapping[str, str], group: str) -> None:
        """Send to one explorer, with a connection of this thread's own: a wait holds it."""
        store = dist.TCPStore(self.host, self.port, None, False, timedelta(seconds=STEP_S))
        if self._send(store, ref, wait, group):
            self._served(ref, wait)

    def _waiting(self, explorer: str, version: int) -> str:
        """The wait of an explorer that was not answered yet; empty if there is none."""
        key = asked_key(explorer, version)
        wait = self._store.get(key).decode() if self._store.check([key]) else ""
        return "" if wait in self._answered else wait

    def _send(self, store: dist.Store, ref: WeightRef, waits: Mapping[str, str], group: str) -> bool:
        """Broadcast `ref` to these as one group; whether all have it, or cannot get it."""
        directory = Path(ref.path)
        try:
            content = manifest_bytes(directory)
            needed = [one for one in parse_manifest(content, directory)["files"] if is_needed(one)]
            files = {one: _mapped(directory / one) for one in needed}
            means = self._means(store, waits)
        except (RftError, OSError) as err:
            _answer(store, waits, [{"error": str(err)} for _ in waits])
            return True
        size = 1 + len(waits)
        common = {"group": group, "backend": means[0], "size": size, "manifest": content.decode()}
        common["files"] = {one: len(data) for one, data in files.items()}
        _answer(store, waits, [{**common, "rank": rank} for rank in range(1, size)])
        try:
            joined = Group(means, store, group, 0, size, self.host)
            for data in files.values():
                joined.broadcast(data)
            joined.leave()
        except RuntimeError as err:  # of torch: an explorer died; the others ask again
            log.warning("version %d did not reach all of %s: %s", ref.version, ", ".join(waits), err)
            return False
        for wait in waits.values():
            store.delete_key(answer_key(wait))
        return True

    def _means(self, store: dist.Store, waits: Mapping[str, str]) -> tuple[str, str]:
        """Backend and device that send to these explorers. Raises: EngineError without a GPU for it."""
        if self._backend == "gloo":
            return "gloo", "cpu"
        for wait in waits.values():
            self._taken.update(json.loads(store.get(gpus_key(asker(wait)))))
        if device := free_gpu(seen_gpus(), self._taken):
            return "nccl", device
        lack = f"the run's own process sends weights, and sees no GPU on {self.host} besides the explorers'"
        if not self._or_gloo:
            raise EngineError(f"{lack}; start the run on the trainer's node, or use 'gloo' or 'ray'")
        if not self._told:
            log.warning("%s: they go by 'gloo'", lack)
            self._told = True
        return "gloo", "cpu"

    def _served(self, ref: WeightRef, explorers: Mapping[str, str]) -> None:
        with self._changed:
            for name in explorers:
                if self._wanted.get(name) == ref:
                    del self._wanted[name]


def _answer(store: dist.Store, waits: Mapping[str, str], answers: Sequence[Mapping[str, object]]) -> None:
    for wait, answer in zip(waits.values(), answers, strict=True):
        store.set(answer_key(wait), json.dumps(answer))


def _mapped(file: Path) -> np.memmap:
    """The bytes of a file. Raises: IntegrityError for an empty one; OSError."""
    if not file.stat().st_size:
        raise IntegrityError(f"{file} is empty; the version was damaged since it was published.")
    return np.memmap(file, np.uint8, "c")
