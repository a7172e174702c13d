"""The program of a trainer's ranks above 0: they carry out rank 0's orders until the order `end`.

A rank is a child of rank 0's process (`main`), a process of torchrun, or a Ray actor (`actor_rank`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rft_data.core.children import connected
from rft_data.core.collector import collector_paused
from rft_data.core.errors import RecipeError, TrainingError
from rft_data.core.failpoints import failpoint
from trainers.ranks.launch import SET_ASIDE, TORCH_VARIABLES

if TYPE_CHECKING:  # loads torch, which a run of one process does not need here
    from torch.distributed import TCPStore

    from trainers.policy.grpo import GrpoTrainer
    from trainers.ranks.ranks import Ranks

Arguments = Mapping[str, object]


def served_torchrun(processes: int, deadline_s: float) -> bool:
    """Serve, if torchrun started this process as a rank above 0; False in every other process.

    It is called at the start of a run.

    In rank 0 torchrun's variables are moved to SET_ASIDE, where only the trainer looks: explorers that saw
    them would take themselves for ranks of the trainer. Without torchrun nothing is done.

    Args: processes: how many the recipe asks for; deadline_s: longest wait for rank 0's trainer.
    Raises: RecipeError when torchrun started another number of processes; what `serve` and `join` raise.
    """
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if world == 1:
        return False
    if world != processes:
        raise RecipeError(
            f"torchrun started {world} processes, placement.trainer.processes is {processes}; "
            "make them equal."
        )
    if rank == 0:
        names = [name for name in os.environ if name in TORCH_VARIABLES or name.startswith("TORCHELASTIC_")]
        os.environ[SET_ASIDE] = json.dumps({name: os.environ.pop(name) for name in names})
        return False
    from trainers.ranks.ranks import Ranks

    serve(Ranks.join(deadline_s))
    return True


def serve(ranks: Ranks, own_arguments: Callable[[Arguments], Arguments] = dict) -> None:
    """Carry out rank 0's orders until the order `end`.

    Args: own_arguments: from the trainer's arguments, those of this rank, on a node of its own.
    Raises: what an order raised, after rank 0 was told; RoleDiedError when rank 0 has ended.
    """
    trainer: GrpoTrainer | None = None
    while True:
        order, batch = ranks.next_order()
        try:
            failpoint("rank.order")
            if order["do"] == "make":
                from trainers.role import make_trainer  # loads TRL

                trainer = make_trainer(own_arguments(order["arguments"]), ranks)
            elif order["do"] != "end":
                if trainer is None:
                    raise TrainingError(f"the order '{order['do']}' came before 'make'; this is a defect.")
                trainer.follow(order, batch)
        except Exception as err:  # rank 0 must be told of any error here
            ranks.answer(f"{type(err).__name__}: {err}")
            raise
        ranks.answer()
        if order["do"] == "end":
            return


def main() -> None:
    """The process of one rank on this machine; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the conductor, which then ends this process
    connection = connected()
    with collector_paused():
        from trainers.ranks.ranks import Ranks
        from trainers.role import make_trainer  # noqa: F401 - loads TRL before rank 0 waits for this process

    connection.sendall(b"ready\n")
    threading.Thread(target=_end_when_closed, args=(connection,), daemon=True).start()
    status = 0
    try:
        serve(Ranks.join(float(sys.argv[3]), _store()))
    except BaseException:  # noqa: BLE001 - the outermost frame of this process
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)  # its threads may wait in a collective that no other rank joins any more


def _store() -> TCPStore:
    from torch.distributed import TCPStore

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]))


def _end_when_closed(connection: socket.socket) -> None:
    connection.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
