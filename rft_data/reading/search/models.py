"""Sentence embedders: a sentence-transformers model by path or hub id, or a function of the caller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.lookup import need

Embedder = Callable[[list[str]], "npt.NDArray[np.float32] | npt.NDArray[np.float64]"]
"""Texts to an [n, dim] array."""


def model_name(model: str | Path | Embedder, name: str | None) -> str:
    """The name under which the model's vectors are stored.

    Raises: RecipeError if the model is a function and no name was given.
    """
    if name is None and callable(model):
        raise RecipeError(
            "an embedder that is a function needs a name to store its vectors under; pass name='...'."
        )
    return name if name is not None else str(model)


def load_embedder(model: str | Path | Embedder) -> Embedder:
    """The model as a function from texts to vectors of unit length.

    Reads only safetensors weights, and runs no code that a model brings.
    Raises: MissingExtraError without sentence-transformers; RecipeError if the model cannot be loaded.
    """
    if callable(model):
        return model
    library = need("sentence_transformers", "embed", f"embedding with '{model}'")
    try:
        loaded = library.SentenceTransformer(
            str(model), trust_remote_code=False, model_kwargs={"use_safetensors": True}
        )
    except (OSError, ValueError) as err:
        raise RecipeError(
            f"no sentence-transformers model could be loaded from '{model}' ({err}); give the folder of one, "
            "or a hub id."
        ) from err
    return lambda texts: np.asarray(loaded.encode(texts, show_progress_bar=False, convert_to_numpy=True))


def unit_vectors(embedder: Embedder, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Embeddings of `texts`, [n, dim], of length one (a zero vector stays zero); each text is embedded once.

    Raises: RowError if the embedder returns another shape, or numbers that are not finite.
    """
    unique, places = np.unique(np.asarray(texts, dtype=object), return_inverse=True)
    vectors = np.asarray(embedder(unique.tolist()), np.float32)
    if vectors.ndim != 2 or len(vectors) != len(unique) or vectors.shape[1] == 0:
        raise RowError(
            f"the embedder made an array of shape {vectors.shape} of {len(unique)} texts; wanted [n, dim]."
        )
    if not np.isfinite(vectors).all():
        raise RowError("the embedder made a vector with NaN or infinity; nothing of the batch was stored.")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths))[places].astype(np.float32)
