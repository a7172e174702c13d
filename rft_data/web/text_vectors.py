"""The vector of a text that a person typed, for searches by meaning.

The model is the one that made the vectors of the buffer's rows. It is loaded only from a folder of this
machine that the run's recipe names, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rft_data.buffer import Buffer
from rft_data.reading.search import has_vectors
from rft_data.run.status import stored_recipe
from rft_data.web.child_work import ask

DEADLINE_S = 60.0
"""For the libraries, the model and the text."""
_MARK = "modules.json"
"""A file of every folder of a sentence-transformers model."""
_KEPT = 64
"""Texts whose vectors are kept."""


def embedders(buffer: Buffer, run_dir: Path | None) -> list[str]:
    """Models by which a text can be searched for: the run's recipe names them, rows have their vectors."""
    if run_dir is None:
        return []
    named = dict.fromkeys(_texts(stored_recipe(run_dir)))
    return [name for name in named if (Path(name) / _MARK).is_file() and has_vectors(buffer, name)]


@lru_cache(_KEPT)
def vector(model: str, text: str) -> npt.NDArray[np.float32]:
    """The vector of a text. Raises: what `ask` raises."""
    request = {"model": model, "text": text}
    found = ask("rft_data.run.text_vector_child", request, deadline_s=DEADLINE_S, what="the search")
    return np.array(found["vector"], np.float32)


def _texts(node: object) -> Iterator[str]:
    """Texts of a recipe that may be paths."""
    if isinstance(node, dict):
        node = list(node.values())
    if isinstance(node, list):
        for one in node:
            yield from _texts(one)
    elif isinstance(node, str) and "/" in node and "\0" not in node and len(node) < 1_000:
        yield node
