"""The process in which a typed text is embedded: it reads a model from a folder, and asks no host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

from rft_data.run.child_answer import answer


class Request(TypedDict):
    """A text to embed, and the model that does it."""

    model: str
    """A folder."""
    text: str


def work(request: Request) -> dict[str, object]:
    """The vector of a text.

    Raises: MissingFileError when the folder is gone; what `load_embedder` raises.
    """
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    from rft_data.core.errors import MissingFileError
    from rft_data.reading.search.models import load_embedder, unit_vectors

    if not Path(request["model"]).is_dir():
        raise MissingFileError(f"the folder of the model '{request['model']}' is gone.")
    return {"vector": unit_vectors(load_embedder(request["model"]), [request["text"]])[0].tolist()}


if __name__ == "__main__":
    answer(work)
