"""The engine's side of vLLM's own weight transfer: NCCL broadcast, CUDA IPC, and gloo on a CPU.

The sender (`sender.py`) has a key-value store, in which an engine finds the offered versions and the address
of the group. Tensors go from the sender's memory to the engine's; the store holds only names, shapes and the
probe.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from explorers.transports.arrival import (
    TORCH_DTYPES,
    Arrived,
    Source,
    checked_manifest,
    engine_tensors,
    probe_in_bytes,
)
from rft_data.core.errors import EngineError, StalledError
from rft_data.core.files import Tensors
from rft_data.core.lookup import need
from rft_data.core.rows import WeightRef


class Transfer:
    """Receives what a `WeightSender` offers; for the vllm engine only."""

    def __init__(self, backend: str, host: str, port: int, deadline_s: float) -> None:
        """`host` and `port` are the sender's; `deadline_s`: longest wait for an offer."""
        self.engine_options: Mapping[str, object] = {"weight_transfer_config": {"backend": backend}}
        self._backend = backend
        self._address = (host, port)
        self._deadline_s = deadline_s
        self._store: Any = None  # of torch, and None when closed
        self._generation = -1
        self._index = -1

    def fetch(self, ref: WeightRef) -> Arrived:
        """Find the offer of a version; its tensors are received when the engine applies them.

        Raises: StalledError when nothing is offered within the deadline, IntegrityError for an offer of
            another version, EngineError when the sender expects fewer engines.
        """
        offer = self._get(f"offer/{ref.version}")
        manifest = checked_manifest(offer["manifest"].encode(), ref, f"the offer of version {ref.version}")
        init = self._get(f"init/{offer['generation']}")
        self._join(offer["generation"], offer["receivers"])
        if "rank_offset" in init:
            init["rank_offset"] += self._index
        tensors = engine_tensors(manifest)
        update = self._get(f"update/{ref.version}") if self._backend == "ipc" else update_info(tensors)
        source: Source = {
            "use": "transfer",
            "generation": offer["generation"],
            "init": init,
            "update": update,
        }
        return Arrived(
            tensors,
            probe_in_bytes(base64.b64decode(offer["probe"])),
            source,
            done=lambda error: self._report(ref.version, error),
        )

    def close(self) -> None:
        """Leave the store."""
        self._store = None

    def _join(self, generation: int, receivers: int) -> None:
        if generation != self._generation:
            self._index = int(self._store.add(f"receivers/{generation}", 1)) - 1
            self._generation = generation
        if self._index >= receivers:
            raise EngineError(
                f"the sender at {self._address} counts {receivers} engines, and this is one more (was it "
                "restarted?); call the sender's `regroup` with the new number and publish again."
            )

    def _report(self, version: int, error: BaseException | None) -> None:
        key = f"{self._generation}/{version}"
        if error is not None:
            self._store.set(f"failed/{key}", f"{type(error).__name__}: {error}")
        self._store.add(f"done/{key}", 1)

    def _get(self, key: str) -> Any:
        need("torch", "train", "receiving weights")
        import torch.distributed as dist

        host, port = self._address
        try:
            if self._store is None:
                allowed = timedelta(seconds=self._deadline_s)
                self._store = dist.TCPStore(host, port, None, False, allowed)
            return json.loads(self._store.get(key))
        except (dist.DistStoreError, dist.DistNetworkError) as err:
            raise StalledError(
                f"the weight sender at {host}:{port} did not offer '{key}' within {self._deadline_s:g} s; is "
                "it running, and did it offer this version?"
            ) from err


def nccl(host: str, port: int, deadline_s: float = 600.0) -> Transfer:
    """Broadcast from the sender's GPU to the engines'."""
    return Transfer("nccl", host, port, deadline_s)


def ipc(host: str, port: int, deadline_s: float = 600.0) -> Transfer:
    """Through the memory of the GPU that sender and engine share."""
    return Transfer("ipc", host, port, deadline_s)


def gloo(host: str, port: int, deadline_s: float = 600.0) -> Transfer:
    """Broadcast over TCP between CPUs."""
    return Transfer("gloo", host, port, deadline_s)


def update_info(tensors: Tensors) -> dict[str, object]:
    """Names, dtypes and shapes of the tensors in the order they are sent, as vLLM's engines take them."""
    names = sorted(tensors)
    return {
        "names": names,
        "dtype_names": [TORCH_DTYPES[tensors[name][0]] for name in names],
        "shapes": [list(tensors[name][1]) for name in names],
    }
