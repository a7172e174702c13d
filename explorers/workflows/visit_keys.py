"""Keys of a served run: the token opens trajectories, and their keys are made from it."""

from __future__ import annotations

import hmac

from explorers.capture.keys import TrajectoryKeys
from explorers.workflows.visit_request import VisitRequest
from rft_data.core.errors import RecipeError

_LEAST = 16
"""Characters of a token."""
_NO_TOKEN = "this token opens no trajectory here."  # noqa: S105 - what is said of it
_NO_KEY = "no open trajectory has this id and this key."


class VisitKeys:
    """Tells who may ask for what, before anything else of a request is looked at."""

    def __init__(self, token: object) -> None:
        """`token`: opens trajectories; with the same token a trajectory has the same key again.

        Raises: RecipeError for one that is too short.
        """
        if not isinstance(token, str) or len(token) < _LEAST:
            raise RecipeError(
                f"explorer.workflow.args.token is shorter than {_LEAST} characters; give a random one."
            )
        self._token = token.encode()
        self._keys = TrajectoryKeys(self._token)

    def key(self, name: str) -> str:
        """The key of a trajectory."""
        return self._keys.key(name)

    def refusal(self, asked: VisitRequest) -> str | None:
        """Reason to refuse a request: it opens without the token, or has not its trajectory's key."""
        if asked.opens:
            return None if hmac.compare_digest(self._token, asked.given) else _NO_TOKEN
        return None if self._keys.opens(asked.name, asked.given) and asked.name else _NO_KEY
