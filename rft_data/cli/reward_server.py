"""`rft reward-server`: a reward model over HTTP, for the reward `reward_server`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from rft_data.cli.edge import Json, edge, say, show_address

TOKEN = "RFT_REWARD_TOKEN"  # noqa: S105 - its name, not the token


def reward_server(
    model: Annotated[
        Path, typer.Argument(help="Folder of a reward model, as the stage reward_model writes.")
    ],
    device: Annotated[str, typer.Option(help="torch's name of the device, for example cuda:1.")] = "cpu",
    batch: Annotated[int, typer.Option(min=1, help="Most conversations of a forward pass.")] = 32,
    host: Annotated[
        str, typer.Option(help="Address to listen on; connections are not encrypted.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    as_json: Json = False,
) -> None:
    """Serve a reward model over HTTP until Ctrl-C or SIGTERM, for rewards `use: reward_server`.

    Clients send the value of RFT_REWARD_TOKEN as their bearer token; without that variable one is made here.
    """
    with edge():
        import os
        import secrets

        from explorers.rewards.conversation_scorer import ConversationScorer
        from explorers.rewards.reward_service import RewardService
        from rft_data.core.errors import Stopped

        token = os.environ.get(TOKEN, "").strip()
        if not token:
            token = secrets.token_urlsafe(24)
            say(f"export {TOKEN}={token}    # for the clients: api_key_env: {TOKEN}", err=True)
        asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: asked.set())
        with RewardService(
            ConversationScorer(str(model), device, batch), token, host=host, port=port
        ) as service:
            threading.Thread(target=service.serve_forever, args=(0.1,), daemon=True).start()
            show_address(service.url, as_json=as_json)
            asked.wait()
            service.shutdown()
        raise Stopped("the reward server stopped, as asked")
