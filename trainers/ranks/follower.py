"""What the other ranks of a trainer do: carry out rank 0's orders until it says `end`.

A rank is a child of rank 0's process (`main`), a process of torchrun, or a worker of Ray Train.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from rft_data.core.children import connected
from rft_data.core.errors import RecipeError
from rft_data.core.failpoints import failpoint
from trainers.ranks.launch import SET_ASIDE, TOLD

if TYPE_CHECKING:  # it loads torch, which a run that has no other ranks does not wait for
    from trainers.ranks.ranks import Ranks


def served_torchrun(processes: int, deadline_s: float) -> bool:
    """At the start of a run: whether this process was one of torchrun's other ranks, and has served.

    In rank 0 the run goes on; what torchrun told it is kept from everything but the trainer, since explorers
    would otherwise take themselves for a rank of it. Without torchrun nothing happens.

    Args: processes: what the recipe says; deadline_s: how long rank 0's trainer is waited for.
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
        names = [name for name in os.environ if name in TOLD or name.startswith("TORCHELASTIC_")]
        os.environ[SET_ASIDE] = json.dumps({name: os.environ.pop(name) for name in names})
        return False
    from trainers.ranks.ranks import Ranks

    serve(Ranks.join(deadline_s))
    return True


def serve(ranks: Ranks) -> None:
    """Carry out rank 0's orders until it says `end`.

    Raises: what an order raised, after rank 0 was told; RoleDiedError when rank 0 is gone.
    """
    trainer: Any = None
    while True:
        order, batch = ranks.told()
        try:
            failpoint("rank.order")
            if order["do"] == "make":
                from trainers.role import make_trainer  # loads TRL

                trainer = make_trainer(order["arguments"], ranks)
            elif order["do"] != "end":
                trainer.follow(order, batch)
        except Exception as err:  # whatever broke here, rank 0 must hear of it
            ranks.answer(f"{type(err).__name__}: {err}")
            raise
        ranks.answer()
        if order["do"] == "end":
            return


def main() -> None:
    """The process of one rank on this machine; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the conductor, which then asks us
    line = connected()
    from trainers.ranks.ranks import Ranks
    from trainers.role import make_trainer  # noqa: F401 - brings TRL in, before anybody waits for us

    line.sendall(b"ready\n")
    threading.Thread(target=_end_when_hung_up, args=(line,), daemon=True).start()
    status = 0
    try:
        serve(Ranks.join(float(sys.argv[3]), _store()))
    except BaseException:  # noqa: BLE001 - this process's edge
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)  # its threads may wait in a collective that nobody else will join


def _store() -> Any:
    from torch.distributed import TCPStore

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]))


def _end_when_hung_up(line: socket.socket) -> None:
    line.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main()
