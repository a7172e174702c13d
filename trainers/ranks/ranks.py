"""The processes of one data-parallel trainer: rank 0 gives orders, and the others carry them out with it.

Orders and answers go over a process group of their own (gloo), in which waiting for the next order has no
deadline; gradients go over torch's default group. An order is JSON and, for a step, tensors.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, cast

import torch
import torch.distributed as dist
from safetensors.torch import load, save

from rft_data.core.errors import RftError, RoleDiedError, StalledError, TrainingError

if TYPE_CHECKING:
    from accelerate import Accelerator

_FOREVER = timedelta(days=3650)
_EXPLAIN_S = 10.0
"""When rank 0's part of an order failed: how long it waits for the other ranks to say why."""
_ASK_S = 1.0
"""When the deadline has passed: how long rank 0 waits to learn which rank has not answered."""

Tensors = dict[str, torch.Tensor]


class Order(TypedDict):
    """An order from rank 0 to the other ranks."""

    do: Literal["make", "step", "checkpoint", "weights", "sleep", "wake", "close", "end"]
    arguments: NotRequired[Mapping[str, object]]
    """For the order `make`: a GrpoPlan as JSON."""
    checkpoint: NotRequired[bool]
    """For the order `step`: whether a checkpoint is written after it."""


class Ranks:
    """The processes of a trainer as one of them sees them. The default is a trainer of one process."""

    def __init__(self, rank: int = 0, world: int = 1, deadline_s: float = 3600.0) -> None:
        """One process; for several, see `join`. `deadline_s`: longest wait for a rank during an order."""
        self.rank = rank
        self.world = world
        self.deadline_s = deadline_s
        self.sound = True
        """Whether every order so far was carried out. If not, what the other ranks are doing is unknown."""
        self._group: dist.ProcessGroup | None = None

    @classmethod
    def join(cls, deadline_s: float, store: dist.Store | None = None) -> Ranks:
        """Meet the other processes; the default group is made if there is none.

        Args:
            deadline_s: longest wait for the others here, in a collective, and for an answer.
            store: the store they meet at; None: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT tell
            (torchrun).
        Raises: StalledError when not all of them have joined by the deadline.
        """
        if not dist.is_initialized():
            _make_default_group(deadline_s, store)
        ranks = cls(dist.get_rank(), dist.get_world_size(), deadline_s)
        ranks._group = dist.new_group(backend="gloo", timeout=_FOREVER)
        return ranks

    # --- rank 0 --------------------------------------------------------------------------------------

    @contextmanager
    def together(self, order: Order, batch: Tensors | None = None) -> Iterator[None]:
        """Send `order` to the other ranks, let the block do this rank's part, and wait for their answers.

        Raises: RoleDiedError for a rank that has ended, StalledError for one that does not answer within the
            deadline, TrainingError for one that failed; else what the block raised.
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
        """Raise another rank's error, if that is why this rank's part failed.

        All ranks find a loss that is not finite, and a full disk is this rank's own: such errors stay. A rank
        that is silent may wait for this one, unless it is torch that failed (RuntimeError) or a deadline.
        """
        try:
            self._collect(end)
        except RftError as cause:
            known = isinstance(error, RftError | OSError) and not isinstance(error, StalledError)
            ours = not isinstance(error, RuntimeError | StalledError) and isinstance(cause, StalledError)
            if not known and not ours:
                raise cause from error

    def _tell(self, order: Order, batch: Tensors, end: float) -> None:
        parts = [json.dumps(order).encode(), save(batch) if batch else b""]
        for rank in range(1, self.world):
            for part in parts:
                self._send(part, rank, end)

    def _collect(self, end: float) -> None:
        """Wait for every rank's answer to the last order."""
        for rank in range(1, self.world):
            answer = json.loads(self._receive(rank, end))
            if answer["error"]:
                raise TrainingError(f"rank {rank} of the trainer's {self.world} failed: {answer['error']}")

    # --- the others ----------------------------------------------------------------------------------

    def next_order(self) -> tuple[Order, Tensors]:
        """Wait, without a deadline, for rank 0's next order.

        Raises: RoleDiedError when rank 0 has ended.
        """
        order: Order = json.loads(self._receive(0, None))
        batch = self._receive(0, None)
        return order, load(batch) if batch else {}

    def answer(self, error: str = "") -> None:
        """Tell rank 0 that the order is carried out, or (`error`) why not."""
        self._send(json.dumps({"error": error}).encode(), 0, time.monotonic() + self.deadline_s)

    # --- messages ------------------------------------------------------------------------------------

    def _send(self, data: bytes, rank: int, end: float) -> None:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0)
        for tensor in (torch.tensor([len(data)]), content):
            if tensor.numel():
                self._transfer(rank, end, partial(dist.isend, tensor, rank, group=self._group))

    def _receive(self, rank: int, end: float | None) -> bytes:
        size = torch.zeros(1, dtype=torch.int64)
        self._transfer(rank, end, partial(dist.irecv, size, rank, group=self._group))
        content = torch.empty(int(size), dtype=torch.uint8)
        if content.numel():
            self._transfer(rank, end, partial(dist.irecv, content, rank, group=self._group))
        return bytes(content.numpy())

    def _transfer(self, rank: int, end: float | None, start: Callable[[], dist.Work | None]) -> None:
        """Start one transfer and wait for its end.

        Raises: RoleDiedError when the other process has ended, StalledError past `end`.
        """
        try:
            work = cast("dist.Work", start())  # None only outside the group, and every rank is in it
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
"""A trainer of one process."""


def gathered(tensor: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
    """The (B, C) tensors of all ranks in one, row after row; narrower ones are padded with 0.

    Every rank has B rows and must call it. In a trainer of one process the tensor itself is returned.
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
