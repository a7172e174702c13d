"""Hands the images of a request to its engine; an engine that takes no images is called without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rft_data.core.engine import Engine
from rft_data.core.errors import EngineError

Fetch: TypeAlias = Callable[[str], bytes]
"""The bytes of a payload id."""


def images_from(engine: object, fetch: Fetch) -> None:
    """Tell an engine where images come from, if it takes any."""
    if hasattr(engine, "images_from"):
        engine.images_from(fetch)


def shown(images: Sequence[str]) -> dict[str, Sequence[str]]:
    """The further argument of `Engine.generate` for a prompt with images; none without."""
    return {"images": images} if images else {}


def accepted(engine: Engine, images: Sequence[str]) -> dict[str, Sequence[str]]:
    """The same, for an engine that may take none. Raises: EngineError when it is to show images then."""
    if images and not hasattr(engine, "images_from"):
        raise EngineError(
            f"a task shows images, and the engine {type(engine).__name__} takes none; use engine vllm."
        )
    return shown(images)
