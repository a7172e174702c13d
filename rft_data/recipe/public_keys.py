"""Keys whose values are shown although the environment gave them: paths, and ids of models and data."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rft_data.core.masking import masked
from rft_data.recipe.leaves import leaves
from rft_data.recipe.recipe import Recipe
from rft_data.recipe.section import Loc

_LAST = frozenset({"path", "teacher", "run_dir", "environment", "dataset", "model"})
_IN_MODELS = re.compile(r"models\.\d+")
_CODE = re.compile(r"explorer\.(reward\.\d+|workflow|workflows\.\w+)\.use")
"""Keys of the user's own code: shown where it is `file.py:name` or `module:name`."""
_OWN = re.compile(r"[\w./~ -]+:\w+")
_PLAIN = re.compile(r"[^\x00-\x1f?@]*|[a-z]+://[\w.-]+/[^\x00-\x1f?@]*(@[\w./-]+)?")
"""A path, or an address without user info, query and lines of its own; a revision may end it."""


def is_public(loc: Loc, value: str) -> bool:
    """Whether the value of a key may be shown: it is a path or an id that holds no secret of an address."""
    key = ".".join(map(str, loc))
    if _CODE.fullmatch(key):
        return _OWN.fullmatch(value) is not None
    named = loc[-1:] in {(one,) for one in _LAST} or key == "buffer.uri" or _IN_MODELS.fullmatch(key)
    return bool(named) and _PLAIN.fullmatch(value) is not None


def shown_leaves(recipe: Recipe) -> Iterator[tuple[Loc, object]]:
    """Every value of a resolved recipe as people see it; one of the environment shows at public keys only."""
    resolved = dict(leaves(recipe.model_dump(mode="json")))
    for loc, value in leaves(recipe.saved()):
        found = resolved.get(loc) if loc in recipe.references else None
        yield loc, masked(found) if isinstance(found, str) and is_public(loc, found) else value
