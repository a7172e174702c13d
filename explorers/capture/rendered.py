"""vLLM's renderer, looked at: what a request is as a chat, before its template makes text of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from explorers.capture.trajectory import ASKED


class Observed:
    """Renders as the renderer does, and notes the messages of a request whose client said none in that form.

    The routes `responses` and `messages` have forms of their own, of which vLLM's server makes chats.
    """

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._renderer, name)

    async def render_chat_async(
        self, conversations: Sequence[Sequence[Any]], chat_params: Any, *args: object, **more: object
    ) -> Any:
        """As vLLM's own."""
        asked = ASKED.get()
        if asked is not None and asked.messages is None and len(conversations) == 1:
            asked.messages = list(conversations[0])
            asked.tools = _defined(chat_params.chat_template_kwargs.get("tools"))
        return await self._renderer.render_chat_async(conversations, chat_params, *args, **more)


def _defined(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, object]] | None:
    """Definitions of tools without the fields that are None; None where there are no tools."""
    if not tools:
        return None
    return [
        {**tool, "function": {name: value for name, value in tool["function"].items() if value is not None}}
        for tool in tools
    ]
