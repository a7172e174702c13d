"""Server that a recipe names for programs, and its parsers; read without the server."""

from __future__ import annotations

from collections.abc import Mapping

from rft_data.core.errors import RecipeError

SMALL, VLLM = SERVERS = ("small", "vllm")
_PARSERS = ("tool_parser", "reasoning_parser")


def server_settings(server: object) -> tuple[str, dict[str, str]]:
    """A word of SERVERS, and vLLM's names of parsers. Raises: RecipeError."""
    found: dict[str, object] = dict(server) if isinstance(server, Mapping) else {"use": server}
    use = found.pop("use", None)
    if use not in SERVERS:
        raise RecipeError(
            f"explorer.workflow.args.server is {server!r:.200}; wanted one of: {', '.join(SERVERS)}, or "
            "{use: vllm, tool_parser: hermes}."
        )
    parsers: dict[str, str] = {}
    for name, parser in found.items():
        if use == SMALL or name not in _PARSERS:
            raise RecipeError(
                f"explorer.workflow.args.server has {name!r}; with {{use: vllm}} it may have: "
                f"{', '.join(_PARSERS)}. The small server finds tool calls and thinking itself."
            )
        if not isinstance(parser, str):
            raise RecipeError(f"explorer.workflow.args.server.{name} is {parser!r}; wanted a name of vLLM's.")
        parsers[name] = parser
    return str(use), parsers
