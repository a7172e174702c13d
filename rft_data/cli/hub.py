"""`rft hub`: a buffer for several runs and readers on other machines."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from rft_data.cli.edge import Json, edge, show_address


def hub(
    buffer: Annotated[str, typer.Argument(help="A buffer: a folder, or an object-store URL; made if new.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; at any but loopback it speaks TLS (extra `tls`).")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    as_json: Json = False,
) -> None:
    """Serve a buffer to other machines until Ctrl-C or SIGTERM; prints the hub's address.

    The secret is in RFT_HUB_TOKEN; `rft token` makes the tokens of clients from it. With the same secret and
    port the address is the same after a restart, and clients that wait go on.
    """
    with edge():
        from rft_data.buffer import Buffer
        from rft_data.core.errors import Stopped
        from rft_data.placement.hub.server import HubServer
        from rft_data.run.attached import hub_secret
        from rft_data.run.occupied import check_free

        secret = hub_secret("rft hub")
        asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: asked.set())
        check_free(buffer)
        with Buffer(buffer) as opened, HubServer(opened, host=host, port=port, token=secret) as served:
            show_address(served.address, as_json=as_json)
            asked.wait()
        raise Stopped("the hub stopped, as asked; what was acknowledged is stored")
