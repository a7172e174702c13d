"""The publisher's side of vLLM's own weight transfer: offers a published directory's tensors to engines.

It implements the client protocol of vLLM's trainer-side engines over a key-value store, so that each engine
does its whole update in one call, when it is ready.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from explorers.transports import gloo
from explorers.transports.arrival import TORCH_DTYPES, engine_tensors, iterate_tensors, on_base, whole_tensors
from explorers.transports.transfer_calls import encode
from rft_data.core.errors import EngineError, RecipeError, StalledError
from rft_data.core.files import manifest_bytes, parse_manifest
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import PROBE_FILE

BACKENDS = ("gloo", "ipc", "nccl")
_LOOK_S = 0.01


class WeightSender:
    """Sends published directories to a fixed number of engines. Every engine must load every version."""

    def __init__(
        self,
        backend: str,
        receivers: int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        deadline_s: float = 600.0,
    ) -> None:
        """Open the store.

        Args:
            backend: gloo, nccl, or ipc (sender and engines on one GPU).
            receivers: engines that load each version.
            host: address of this process that the engines can reach.
            port: of the store; 0 takes a free one (`port` tells).
            deadline_s: longest a version may take from its offer to the last engine.

        Raises: RecipeError for another backend.
        """
        if backend not in BACKENDS:
            raise RecipeError(f"weights cannot be sent by '{backend}'; wanted one of {', '.join(BACKENDS)}.")
        gloo.register_trainer()
        self._backend = backend
        self._host = host
        self._deadline_s = deadline_s
        self._store = dist.TCPStore(
            host, port, None, True, timedelta(seconds=deadline_s), wait_for_workers=False
        )
        self.port = int(self._store.port)
        self._pool = ThreadPoolExecutor(1, "weight-sender")
        self._generation = -1
        self._client: _StoreClient | None = None
        self._engine: tuple[int, TrainerWeightTransferEngine] | None = None
        """vLLM's engine of the sender's side, and the group it is of."""
        self.regroup(receivers)

    def regroup(self, receivers: int) -> None:
        """Make a new group of `receivers` engines at the next offer; needed after an engine was restarted.

        Engines that have not answered an earlier offer are not waited for any longer.
        """
        self._receivers = receivers
        self._generation += 1
        if self._client is not None:
            self._client.given_up = True

    def offer(self, ref: WeightRef) -> Future[None]:
        """Start sending a version; engines receive it when they load it.

        The future ends when the last engine has proved it. It raises EngineError when one failed, and
        StalledError when not all have come within the deadline; then `regroup` before the next offer. An
        adapter is merged here, so it raises MissingFileError or IntegrityError for its base.
        """
        directory = Path(ref.path)
        offer = {
            "generation": self._generation,
            "receivers": self._receivers,
            "manifest": manifest_bytes(directory).decode(),
            "probe": base64.b64encode((directory / PROBE_FILE).read_bytes()).decode(),
        }
        self._store.set(f"offer/{ref.version}", json.dumps(offer))
        client = self._client = _StoreClient(
            self._store, ref.version, self._generation, self._receivers, self._deadline_s
        )
        return self._pool.submit(self._send, directory, client, self._generation)

    def close(self) -> None:
        """Stop sending, without waiting for engines that did not answer."""
        if self._client is not None:
            self._client.given_up = True
        if self._engine is not None:
            self._engine[1].shutdown()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _send(self, directory: Path, client: _StoreClient, generation: int) -> None:
        source = DirectorySource(directory, "cpu" if self._backend == "gloo" else "cuda")
        if self._engine is None or self._engine[0] != generation:
            made = WeightTransferTrainerFactory.trainer_init(self._init_info(), client=client, source=source)
            self._engine = (generation, made)
        engine = self._engine[1]
        engine.client, engine.source = client, source
        engine.send_weights()

    def _init_info(self) -> TrainerInitInfo:
        if self._backend == "ipc":
            return IPCTrainerInitInfo(rank=0)
        place: dict[str, Any] = {
            "master_address": self._host,
            "master_port": _free_port(self._host),
            "world_size": 1 + self._receivers,
        }
        if self._backend == "nccl":
            return NCCLTrainerInitInfo(rank=0, **place)
        return gloo.GlooTrainerInitInfo(rank=0, deadline_s=self._deadline_s, **place)


class DirectorySource(WeightSource):
    """The tensors of a weight directory by name, on `device`; an adapter is merged into its base."""

    def __init__(self, directory: Path, device: str) -> None:
        """Read the manifest and check the base of an adapter; tensors are read later."""
        manifest = parse_manifest(manifest_bytes(directory), directory)
        self._directory, self._device = directory, device
        self._tensors = engine_tensors(manifest)
        self._source = on_base(manifest, directory, {"use": "directory", "path": str(directory)})

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and shape of each."""
        return [
            ParamMeta(name, getattr(torch, TORCH_DTYPES[dtype]), shape)
            for name, (dtype, shape) in sorted(self._tensors.items())
        ]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """One at a time."""
        for name, tensor in whole_tensors(iterate_tensors(self._directory), self._source):
            yield name, tensor.to(self._device)


class _StoreClient:
    """vLLM's `VLLMWeightSyncClient` over the store, which the engines read."""

    def __init__(
        self, store: dist.Store, version: int, generation: int, receivers: int, deadline_s: float
    ) -> None:
        self._store = store
        self._version = version
        self._generation = generation
        self._receivers = receivers
        self._deadline_s = deadline_s
        self.given_up = False
        """Whether no caller waits for these engines any longer."""

    def init_weight_transfer_engine(self, init_info: dict[str, object]) -> None:
        """Store the address of the group."""
        self._store.set(f"init/{self._generation}", json.dumps(init_info))

    def start_weight_update(self) -> None:
        """An engine starts when it loads the version."""

    def update_weights(self, update_info: object) -> None:
        """Store the names of the tensors, and wait until every engine has proved the version."""
        self._store.set(f"update/{self._version}", json.dumps(encode(update_info)))
        key = f"{self._generation}/{self._version}"
        deadline = time.monotonic() + self._deadline_s
        while (done := int(self._store.add(f"done/{key}", 0))) < self._receivers:
            if self.given_up or time.monotonic() > deadline:
                raise StalledError(
                    f"{done} of {self._receivers} engines have loaded version {self._version} within "
                    f"{self._deadline_s:g} s of its offer; check the others, then call `regroup`."
                )
            time.sleep(_LOOK_S)
        if self._store.check([f"failed/{key}"]):
            reason = self._store.get(f"failed/{key}").decode()
            raise EngineError(f"an engine could not load version {self._version}: {reason}")

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """An engine finishes on its own, in the same call."""


def _free_port(host: str) -> int:
    with closing(socket.socket()) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
