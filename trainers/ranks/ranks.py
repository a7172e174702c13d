"""The processes of one data-parallel trainer: rank 0 gives orders, the others carry them out beside it.

Orders and their answers go over a process group of their own (gloo), where waiting for the next order has
no deadline; gradients go over torch's default group. It knows orders only as JSON and tensors.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from rft_data.core.errors import RftError, RoleDiedError, StalledError, TrainingError

_FOREVER = timedelta(days=3650)
_EXPLAIN_S = 10.0
"""How long the others are asked why, when rank 0's part of an order failed."""
_ASK_S = 1.0
"""How long it is asked who has not answered, when the deadline has passed already."""

Tensors = dict[str, torch.Tensor]


class Ranks:
    """This process's place among the trainer's. The default is a trainer of one process."""

    def __init__(self, rank: int = 0, world: int = 1, deadline_s: float = 3600.0) -> None:
        """Of more than one process: see `join`. `deadline_s`: longest wait for the others, once at work."""
        self.rank = rank
        self.world = world
        self.deadline_s = deadline_s
        self.sound = True
        """Whether every order so far was carried out; else the others may be at anything."""
        self._group: Any = None

    @classmethod
    def join(cls, deadline_s: float, store: dist.Store | None = None) -> Ranks:
        """Meet the other processes; the default group is made if there is none.

        Args:
            deadline_s: longest wait for the others here, in a collective, and for an answer.
            store: where they meet; None: as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say (torchrun).
        Raises: StalledError when they have not all come.
        """
        if not dist.is_initialized():
            _make_default_group(deadline_s, store)
        ranks = cls(dist.get_rank(), dist.get_world_size(), deadline_s)
        ranks._group = dist.new_group(backend="gloo", timeout=_FOREVER)
        return ranks

    # --- rank 0 --------------------------------------------------------------------------------------

    @contextmanager
    def together(self, order: Mapping[str, Any], batch: Tensors | None = None) -> Iterator[None]:
        """Have the others carry out `order` while the block does this process's part of it.

        Raises: RoleDiedError for a rank that is gone, StalledError for one that does not answer within the
            deadline, TrainingError for one that failed; what the block raised, if no rank is to blame.
        """
        if self.world == 1:
            yield
            return
        if not self.sound:
            raise RoleDiedError("the trainer's ranks are out of step since an order failed; resume the run.")
        end = time.monotonic() + self.deadline_s
        self.sound = False
        self._tell(order, batch or {}, end)
        try:
            yield
        except Exception as err:
            patience = _ASK_S if isinstance(err, StalledError) else _EXPLAIN_S
            self._explain(err, time.monotonic() + patience)
            raise
        self._collect(end)
        self.sound = True

    def _explain(self, error: Exception, end: float) -> None:
        """Raise another rank's error instead, if that is why this one failed."""
        try:
            self._collect(end)
        except RftError as cause:
            # a loss that is not finite, say, is found by all ranks; and a full disk is nobody else's fault
            if isinstance(error, StalledError) or not isinstance(error, RftError | OSError):
                raise cause from error

    def _tell(self, order: Mapping[str, Any], batch: Tensors, end: float) -> None:
        parts = [json.dumps(dict(order)).encode(), save(batch) if batch else b""]
        for rank in range(1, self.world):
            for part in parts:
                self._send(part, rank, end)

    def _collect(self, end: float) -> None:
        """Every rank's answer to the last order."""
        for rank in range(1, self.world):
            answer = json.loads(self._receive(rank, end))
            if answer["error"]:
                raise TrainingError(f"rank {rank} of the trainer's {self.world} failed: {answer['error']}")

    # --- the others ----------------------------------------------------------------------------------

    def told(self) -> tuple[dict[str, Any], Tensors]:
        """Wait, without a deadline, for rank 0's next order.

        Raises: RoleDiedError when rank 0 is gone.
        """
        order = json.loads(self._receive(0, None))
        batch = self._receive(0, None)
        return order, load(batch) if batch else {}

    def answer(self, error: str = "") -> None:
        """Tell rank 0 that the order is carried out, or why not."""
        self._send(json.dumps({"error": error}).encode(), 0, time.monotonic() + self.deadline_s)

    # --- messages ------------------------------------------------------------------------------------

    def _send(self, data: bytes, rank: int, end: float) -> None:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
        for tensor in (torch.tensor([len(data)]), content):
            if tensor.numel():
                self._finished(rank, end, lambda t=tensor: dist.isend(t, rank, group=self._group))

    def _receive(self, rank: int, end: float | None) -> bytes:
        size = torch.zeros(1, dtype=torch.int64)
        self._finished(rank, end, lambda: dist.irecv(size, rank, group=self._group))
        content = torch.empty(int(size), dtype=torch.uint8)
        if content.numel():
            self._finished(rank, end, lambda: dist.irecv(content, rank, group=self._group))
        return bytes(content.numpy())

    def _finished(self, rank: int, end: float | None, start: Any) -> None:
        """Do one transfer and wait for it.

        Raises: RoleDiedError when the other process is gone, StalledError past `end`.
        """
        try:
            work = start()
            if end is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
        except RuntimeError as err:
            who = f"rank {rank} of the trainer's {self.world}"
            if end is not None and time.monotonic() >= end:
                raise StalledError(
                    f"{who} has not answered within the deadline; if its steps really take longer, raise "
                    "deadlines.step_s, otherwise look at that process (py-spy dump)."
                ) from err
            raise RoleDiedError(
                f"{who} is gone; its last words are above it in the log (stderr). Resume the run."
            ) from err


ALONE = Ranks()
"""One process."""


def gathered(tensor: torch.Tensor, accelerator: Any) -> torch.Tensor:
    """The (B, C) tensors of all ranks below each other, narrower ones filled up with 0; alone, itself.

    Every rank has B rows and must call it.
    """
    if accelerator.num_processes == 1:
        return tensor
    return accelerator.gather(accelerator.pad_across_processes(tensor.contiguous(), dim=1))  # type: ignore[no-any-return]


def _make_default_group(deadline_s: float, store: dist.Store | None) -> None:
    wait = timedelta(seconds=deadline_s)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        if store is None:
            dist.init_process_group(backend, timeout=wait)
        else:
            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group(backend, timeout=wait, store=store, rank=rank, world_size=world)
    except (RuntimeError, ValueError) as err:
        raise StalledError(
            f"the trainer's processes have not all met within {deadline_s:g} s: {err}. Start as many as "
            "WORLD_SIZE says, with MASTER_ADDR and MASTER_PORT of rank 0."
        ) from err
