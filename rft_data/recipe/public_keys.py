"""Keys whose values are shown although the environment gave them: paths, and ids of models and data."""

from __future__ import annotations

import re

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
