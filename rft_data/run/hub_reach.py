"""Whether the Hugging Face hub answers, asked once for a few seconds: its own client tries for a minute."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rft_data.core.lookup import need
from rft_data.recipe.recipe import Recipe
from rft_data.run.outlook.contacts import HUB_HOST, contacts

_PATIENCE_S = 5.0


@contextmanager
def hub_asked_once(recipe: Recipe) -> Iterator[list[str]]:
    """The reason that a hub which the recipe needs does not answer: nothing, or one line.

    Within the block its client then looks into its cache alone, so that nothing waits for it again.
    """
    need("huggingface_hub", "train", "a model or a dataset of the Hugging Face hub")
    from huggingface_hub import constants  # it loads its parts when they are asked for by name

    why = contacts(recipe).get(HUB_HOST)
    if why is None or constants.HF_HUB_OFFLINE or (silence := _silence(constants.ENDPOINT)) is None:
        yield []
        return
    before = os.environ.get("HF_HUB_OFFLINE")
    _set_offline(True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield [
            f"{constants.ENDPOINT} {silence}, and the recipe needs it: {why}. What comes from there "
            "is looked for in its cache alone; mend the network (HTTPS_PROXY, HF_ENDPOINT), or give a folder"
        ]
    finally:
        _set_offline(False)
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def _silence(endpoint: str) -> str | None:
    """The reason that the hub cannot be reached; None if it answered."""
    import httpx  # huggingface_hub brings it

    said: list[str | None] = [f"did not answer within {_PATIENCE_S:g} s"]

    def ask() -> None:
        try:
            answer = httpx.head(endpoint, timeout=_PATIENCE_S)
            # its client tries again and again where a proxy says so
            said[0] = f"answers with {answer.status_code}" if answer.is_server_error else None
        except httpx.HTTPError as err:
            said[0] = f"cannot be reached ({type(err).__name__}: {err})"

    # a thread: the look-up of a name has no time limit
    asking = threading.Thread(target=ask, name="hub", daemon=True)
    asking.start()
    asking.join(_PATIENCE_S)
    return said[0]


def _set_offline(offline: bool) -> None:
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = offline
    if (datasets := sys.modules.get("datasets.config")) is not None:
        datasets.HF_HUB_OFFLINE = offline  # type: ignore[attr-defined]
