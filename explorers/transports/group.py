"""Weights by broadcast from the run's node to every explorer that asks: gloo over TCP, or NCCL between GPUs.

This is what both sides share, and the engine's side; the sender is `group_sender.py`. The files of a version
are broadcast as they are, into memory of the explorer's process, while its engine generates. Each version has
a group of its own, of those who asked for it: after a death the others ask again.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from explorers.transports.arrival import Arrived, arrived_files, checked_manifest
from explorers.transports.gpus import seen_gpus
from explorers.transports.held import HeldFile, forget, held_source
from rft_data.core.errors import EngineError, RecipeError, StalledError
from rft_data.core.lookup import need
from rft_data.core.network import own_address
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import PROBE_FILE

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

log = logging.getLogger(__name__)

STEP_S = 60.0
"""Longest that a group may take to form, or one piece to be broadcast, before the group is given up."""
LOOK_S = 0.02
_PIECE_BYTES = 32 << 20
_WHY = "weights by broadcast"


def asked_key(explorer: str, version: int) -> str:
    """Key at which an explorer says that it waits for a version; the value names this one wait."""
    return f"asked/{explorer}/{version}"


def answer_key(wait: str) -> str:
    """Key at which the sender answers a wait: rank and size of the group, and what is coming."""
    return f"answer/{wait}"


def gpus_key(asker: str) -> str:
    """Key at which an explorer says which GPUs it sees, as a JSON list; only with NCCL."""
    return f"gpus/{asker}"


def asker(wait: str) -> str:
    """The waiting explorer: the same for all waits of one explorer until it is started again."""
    return wait.partition("/")[0]


class Answer(TypedDict):
    """A sender's answer to a wait, as JSON."""

    group: str
    backend: str
    """Of this group: gloo or nccl."""
    rank: int
    size: int
    """Processes of the group."""
    manifest: str
    """The version's manifest, as it is."""
    files: Mapping[str, int]
    """Bytes of each file that comes, in this order."""
    error: NotRequired[str]
    """Reason why the version cannot be sent; then it is the only field."""


class Group:
    """The processes that one version is broadcast to. Rank 0 sends."""

    def __init__(
        self, means: tuple[str, str], store: dist.Store, name: str, rank: int, size: int, address: str
    ) -> None:
        """Join it; returns when all have joined.

        Args: means: gloo or nccl, and torch's name of the device that sends or receives. name: of the group,
            unique in the store. address: of this process.
        Raises: RuntimeError, of torch, if they have not within STEP_S.
        """
        import torch.distributed as dist

        inside = dist.PrefixStore(f"group/{name}", store)
        allowed = timedelta(seconds=STEP_S)
        inside.set(f"here/{rank}", "")
        inside.wait([f"here/{one}" for one in range(size)], allowed)  # NCCL itself waits without end
        backend, self._device = means
        self._rank = rank
        self._group: Any
        if backend == "gloo":
            kind: Any = dist.ProcessGroupGloo  # torch's types leave its options out
            options = kind._Options()
            options._devices = [kind.create_device(hostname=address)]
            options._timeout = allowed
            self._group = kind(inside, rank, size, options)
        else:
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")  # else a dead member ends this process
            wanted = dist.ProcessGroupNCCL.Options()
            wanted._timeout = allowed
            self._group = dist.ProcessGroupNCCL(inside, rank, size, wanted)

    def broadcast(self, data: npt.NDArray[np.uint8]) -> None:
        """Copy rank 0's bytes into those of the others, piece by piece.

        Raises: RuntimeError, of torch, if a process of the group died.
        """
        import torch

        for start in range(0, len(data), _PIECE_BYTES):
            piece = torch.from_numpy(data[start : start + _PIECE_BYTES])
            on_device = piece.to(self._device)
            self._one(on_device)
            if self._rank and on_device is not piece:
                piece.copy_(on_device)

    def leave(self) -> None:
        """Wait until all have everything. Raises: RuntimeError, of torch."""
        import torch

        self._group.allreduce([torch.zeros(1, device=self._device)]).wait()

    def _one(self, tensor: torch.Tensor) -> None:
        import torch.distributed as dist

        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._group.broadcast([tensor], options).wait()


class GroupTransport:
    """The engine's side."""

    engine_options: Mapping[str, object] = {}

    def __init__(self, backend: str, host: str, port: int, explorer: str, deadline_s: float) -> None:
        """`host`, `port`: of the sender's store. `explorer`: by this name the sender knows who asks.

        Raises: RecipeError where there is no memory that processes can share by descriptor (not Linux).
        """
        if not hasattr(os, "memfd_create"):
            raise RecipeError(
                f"explorer.engine.transport '{backend}' needs Linux, and this is {sys.platform}; use 'ray', "
                "'shm' or 'directory'."
            )
        self._backend = backend
        self._host, self._port = host, port
        self._explorer = explorer
        self._deadline_s = deadline_s
        self._asker = secrets.token_hex(8)
        self._store: Any = None
        self._closed = False

    def fetch(self, ref: WeightRef) -> Arrived:
        """Ask for a version, receive its files, and check their digests.

        If another explorer dies meanwhile, it is asked for again.
        Raises: StalledError when nothing comes within the deadline, EngineError when the sender cannot read
            the version, IntegrityError for bytes that do not match the manifest.
        """
        deadline = time.monotonic() + self._deadline_s
        while True:
            answer = self._answer(ref, deadline)
            try:
                files = self._received(answer)
            except RuntimeError as err:  # of torch: another explorer died, or the sender
                if time.monotonic() > deadline:
                    raise StalledError(f"version {ref.version} never arrived whole: {err}") from err
                log.warning("version %d is asked for again: %s", ref.version, err)
                continue
            where = f"'{self._backend}' from {self._host}:{self._port}"
            manifest = checked_manifest(answer["manifest"].encode(), ref, where)
            held = {name: one for name, one in files.items() if name != PROBE_FILE}
            arrays = {name: one.data for name, one in files.items()}
            return arrived_files(arrays, manifest, ref, held_source(held), done=partial(forget, files))

    def close(self) -> None:
        """Stop asking; idempotent."""
        self._closed = True
        self._store = None

    def _answer(self, ref: WeightRef, deadline: float) -> Answer:
        """The sender's answer to a new wait for `ref`."""
        need("torch", "train", _WHY)
        import torch.distributed as dist

        wait = f"{self._asker}/{secrets.token_hex(4)}"
        try:
            if self._store is None:
                allowed = timedelta(seconds=STEP_S)
                self._store = dist.TCPStore(self._host, self._port, None, False, allowed)
                if self._backend == "nccl":
                    self._store.set(gpus_key(self._asker), json.dumps(seen_gpus()))
            store = self._store  # `close`, in another thread, lets go of it
            store.set(asked_key(self._explorer, ref.version), wait)
            while not store.check([answer_key(wait)]):
                if self._closed or time.monotonic() > deadline:
                    raise StalledError(
                        f"the weight sender at {self._host}:{self._port} did not offer version {ref.version} "
                        f"to '{self._explorer}' within {self._deadline_s:g} s; is it alive, did it offer it?"
                    )
                time.sleep(LOOK_S)
            answer: Answer = json.loads(store.get(answer_key(wait)))
        except (dist.DistStoreError, dist.DistNetworkError) as err:
            self._store = None
            raise StalledError(
                f"the weight sender at {self._host}:{self._port} does not answer ({err}); is the run alive?"
            ) from err
        if "error" in answer:
            raise EngineError(f"version {ref.version} could not be sent: {answer['error']}")
        return answer

    def _received(self, answer: Answer) -> dict[str, HeldFile]:
        address = own_address(self._host, self._port)
        place = (answer["group"], answer["rank"], answer["size"])
        means = (answer["backend"], "cpu" if answer["backend"] == "gloo" else "cuda:0")
        group = Group(means, self._store, *place, address)
        files: dict[str, HeldFile] = {}
        for name, size in answer["files"].items():
            files[name] = HeldFile(name, size)
            group.broadcast(files[name].data)
        group.leave()
        return files


def gloo(host: str, port: int, explorer: str, deadline_s: float = 600.0) -> GroupTransport:
    """Broadcast over TCP between CPUs."""
    return GroupTransport("gloo", host, port, explorer, deadline_s)


def nccl(host: str, port: int, explorer: str, deadline_s: float = 600.0) -> GroupTransport:
    """Broadcast between GPUs."""
    return GroupTransport("nccl", host, port, explorer, deadline_s)
