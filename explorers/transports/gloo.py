"""Weight-transfer engines for vLLM over gloo: they work as its NCCL ones do, on machines without a GPU.

vLLM has none for the CPU. Each side has its own process group besides the default ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, ClassVar, Self

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

BACKEND = "gloo"


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """Address and rank with which a worker joins the sender's group."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    deadline_s: float


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """Names, dtypes and shapes of the tensors, in the order they are sent."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


@dataclass
class GlooTrainerInitInfo(TrainerInitInfo):
    """Address and size of the group, for the sender."""

    backend: ClassVar[str] = BACKEND

    master_address: str
    master_port: int
    world_size: int
    deadline_s: float


class GlooEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """The receiving side, in vLLM's worker."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the sender's group."""
        parallel = self.parallel_config
        rank = init_info.rank_offset + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._group = _group(init_info, rank)

    def start_weight_update(self) -> None:
        """Begin vLLM's layer-by-layer reload."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Load each tensor when it arrives."""
        self.model.load_weights(self._tensors(update_info))

    def finish_weight_update(self) -> None:
        """End the reload."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None

    def _tensors(self, info: GlooUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            _broadcast(self._group, tensor)
            yield name, tensor


class GlooTrainerEngine(TrainerWeightTransferEngine[GlooTrainerInitInfo]):
    """The sender's side: rank 0 of the group."""

    init_info_cls = GlooTrainerInitInfo
    source: WeightSource

    @classmethod
    def trainer_init(
        cls,
        init_info: GlooTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """Send the workers the group's address and wait until they have joined."""
        engine = cls(client=client, source=source, is_sender=init_info.rank == 0)
        invitation = GlooInitInfo(
            master_address=init_info.master_address,
            master_port=init_info.master_port,
            rank_offset=1,
            world_size=init_info.world_size,
            deadline_s=init_info.deadline_s,
        )
        client.init_weight_transfer_engine(asdict(invitation))
        engine._group = _group(init_info, 0)
        return engine

    def send_weights(self) -> None:
        """Broadcast every tensor of the source, while the workers receive."""
        metadata = self.source.metadata()
        info = GlooUpdateInfo(
            names=[entry.name for entry in metadata],
            dtype_names=[str(entry.dtype).removeprefix("torch.") for entry in metadata],
            shapes=[list(entry.shape) for entry in metadata],
        )
        self.client.start_weight_update()
        pool = ThreadPoolExecutor(1)
        try:
            receiving = pool.submit(self.client.update_weights, asdict(info))
            for _, tensor in self.source:
                _broadcast(self._group, tensor.contiguous())
            receiving.result()
        finally:
            pool.shutdown(wait=False)
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Leave the group."""
        self._group = None


def register_engine() -> None:
    """Make the backend known to vLLM's worker side; needed before a model is loaded."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, GlooEngine)


def register_trainer() -> None:
    """Make the backend known to vLLM's sender side."""
    if BACKEND not in WeightTransferTrainerFactory._registry:
        WeightTransferTrainerFactory.register_engine(BACKEND, GlooTrainerEngine)


def _group(info: GlooInitInfo | GlooTrainerInitInfo, rank: int) -> Any:
    allowed = timedelta(seconds=info.deadline_s)
    store = dist.TCPStore(
        info.master_address, info.master_port, info.world_size, rank == 0, allowed, wait_for_workers=False
    )
    return dist.ProcessGroupGloo(store, rank, info.world_size, allowed)


def _broadcast(group: Any, tensor: torch.Tensor) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([tensor], options).wait()
