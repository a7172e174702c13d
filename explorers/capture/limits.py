"""How much programs may ask of a server at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rft_data.core.errors import RecipeError


@dataclass(frozen=True, slots=True)
class CaptureLimits:
    """The bounds of a capturing server; what is beyond them is refused with a status that says so.

    Raises: RecipeError for a value below 1.
    """

    body_bytes: int = 8 << 20
    """Bytes that the body of one request may have."""
    bodies_bytes: int = 64 << 20
    """Bytes that the bodies of all requests under way may have; more are answered 429."""
    requests: int = 256
    """Under way at once; more are answered 429."""
    key_requests: int = 32
    """The same, of one trajectory."""
    trajectories: int = 4096
    """Open at once; more are answered 429."""
    tokens: int = 1 << 20
    """That one trajectory may sample."""
    key_tokens: int = 4 << 20
    """That the rows of one trajectory may have, prompts included."""
    held_tokens: int = 64 << 20
    """The same, of all that are open; beyond it new ones and requests of open ones are answered 429."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise RecipeError(
                    f"the server's limit '{one.name}' is {value!r}; wanted a whole number, 1 or more."
                )
