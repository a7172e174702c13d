"""In front of vLLM's server: one URL prefix and one key per trajectory, and few routes.

It checks who asks, how much, and for what; nothing that vLLM would ignore or a trainer could not learn from
goes through.
"""

from __future__ import annotations

import json
import time
from typing import Any, Unpack

from explorers.capture.answers import refuse
from explorers.capture.asgi import App, Receive, Scope, Send, bearer, replayed
from explorers.capture.bodies import Bodies, BodyRefused
from explorers.capture.capture import Capture, Open
from explorers.capture.elements import check_elements
from explorers.capture.fields import (
    ROUTES,
    asks_for_strict_calls,
    check_fields,
    grammar_field,
    says_limit,
)
from explorers.capture.forms import Forms
from explorers.capture.openai_app import AppArguments, openai_app
from explorers.capture.refused import Refused
from explorers.capture.trajectory import ASKED, Asked
from explorers.engines.vllm_engine import VllmEngine

_READ = frozenset({"/v1/models"})
"""Paths of vLLM's server that may be read."""
_BODIES = 16
"""So many longest bodies of control requests may be under way."""
_DROPPED = frozenset({b"authorization", b"x-api-key", b"content-length", b"cookie"})
"""Headers that vLLM's server does not get."""


class Gate:
    """ASGI application over vLLM's; paths are `/t/TRAJECTORY/v1/...`."""

    def __init__(self, capture: Capture, inner: App, forms: Forms | None = None) -> None:
        """`forms`: what `inner` takes, where that is vLLM's server."""
        self.capture = capture
        self.inner = inner
        self._forms = forms

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        _, prefix, name, rest = [*scope["path"].split("/", 3), "", "", ""][:4]
        route = f"/{rest}"
        opened = self.capture.find(name)
        if prefix != "t" or not self.capture.opens(name, bearer(scope["headers"])) or opened is None:
            await refuse(send, route, 401, "no open trajectory has this URL and this key.")
        else:
            await self.answer(opened, route, scope, receive, send)

    async def answer(self, opened: Open, route: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a trajectory, whose client was found to be its own; `route`: `/v1/...`."""
        if scope["method"] == "GET" and route in _READ:
            await self.inner(_inner_scope(scope, route), receive, send)
        elif scope["method"] != "POST" or route not in ROUTES:
            await refuse(
                send, route, 404, f"there is no such route here; POST one of {', '.join(sorted(ROUTES))}."
            )
        else:
            await self._sampled(opened, route, scope, receive, send)

    async def _sampled(self, opened: Open, route: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request on that samples."""
        capture, limits = self.capture, self.capture.limits
        if capture.requests >= limits.requests or opened.requests >= limits.key_requests:
            await refuse(send, route, 429, "too many requests are under way; come back later.", wait_s=1)
            return
        if capture.held >= limits.held_tokens:
            text = f"all trajectories hold {capture.held} tokens, of at most {limits.held_tokens}: end some."
            await refuse(send, route, 429, text, wait_s=5)
            return
        capture.requests += 1
        opened.requests += 1
        opened.used = time.monotonic()
        try:
            async with capture.bodies.read(scope, receive, limits.body_bytes) as raw:
                token = ASKED.set(self._asked(opened, route, raw))
                try:
                    await self.inner(_inner_scope(scope, route), replayed(raw, receive), send)
                finally:
                    ASKED.reset(token)
        except BodyRefused as err:
            await refuse(send, route, err.status, str(err), wait_s=err.wait_s)
        except Refused as err:
            opened.trajectory.failed(err)
            await refuse(send, route, 400, str(err), param=err.field)
        finally:
            capture.requests -= 1
            capture.count(opened)
            opened.requests -= 1
            opened.used = time.monotonic()

    def _asked(self, opened: Open, route: str, raw: bytes) -> Asked:
        """The request, checked. Raises: Refused."""
        trajectory = opened.trajectory
        if trajectory.room is not None and trajectory.held >= trajectory.room:
            raise Refused(
                "trajectory",
                f"the trajectory holds {trajectory.held} tokens, of at most {trajectory.room}: end it.",
            )
        body = _parsed(raw)
        check_elements(body)
        check_fields(route, body, trajectory.sampling)
        _need_grammars(grammar_field(body))
        if self._forms is not None:
            self._forms.check(route, raw)
        chat = route == "/v1/chat/completions" and isinstance(body.get("messages"), list)
        return Asked(
            trajectory,
            messages=body["messages"] if chat else None,
            tools=body.get("tools") if chat and body.get("tool_choice") != "none" else None,
            limited=says_limit(body),
            ids=body.get("return_token_ids") is True,
            strict=asks_for_strict_calls(body),
        )


async def capturing(
    capture: Capture,
    engine: VllmEngine,
    name: str,
    **of_app: Unpack[AppArguments],
) -> Gate:
    """The application that programs speak to, for the event loop that the engine is stepped in.

    `name` is what they call the model; `of_app` and what is raised are of `openai_app`.
    """
    return Gate(capture, await openai_app(engine, name, **of_app), Forms())


class Front:
    """One application of two: the programs' requests go to the gate, all others to the control routes.

    The keys of both are checked here and in the gate alone; what is not under /t or /trajectories is public.
    """

    def __init__(self, gate: Gate, control: App, body_bytes: int, token: str) -> None:
        """`body_bytes`: longest body of a control request; `token`: who has it, or a key, is read at all."""
        self._gate = gate
        self._control = control
        self._body_bytes = body_bytes
        self._token = token
        self._bodies = Bodies(_BODIES * body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        _, what, name, _ = [*scope["path"].split("/", 3), "", "", ""][:4]
        if what == "t":
            await self._gate(scope, receive, send)
        elif what != "trajectories":  # a look at its health, or what is not there
            await self._control(scope, replayed(b"", receive), send)
        elif not self._gate.capture.admits(self._token, name, bearer(scope["headers"])):
            await refuse(send, "", 401, "this key does not open it.")
        else:
            try:
                async with self._bodies.read(scope, receive, self._body_bytes) as raw:
                    await self._control(scope, replayed(raw, receive), send)
            except BodyRefused as err:
                await refuse(send, "", err.status, str(err), wait_s=err.wait_s)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise Refused("body", f"the request is no JSON ({type(err).__name__}); wanted an object.") from err
    if not isinstance(body, dict):
        raise Refused("body", f"the request is JSON of type {type(body).__name__}; wanted an object.")
    return body


def _inner_scope(scope: Scope, route: str) -> Scope:
    kept = [(name, value) for name, value in scope["headers"] if name.lower() not in _DROPPED]
    return {**scope, "path": route, "raw_path": route.encode(), "query_string": b"", "headers": kept}


def _need_grammars(field: str | None) -> None:
    """Raises: Refused where a package is missing that vLLM imports for every grammar, as `field` asks for."""
    from importlib.util import find_spec

    if field is not None and find_spec("lmformatenforcer") is None:
        raise Refused(
            field,
            f"'{field}' constrains the answer, for which vLLM needs the package 'lm-format-enforcer', and it "
            "is not installed on the server.",
        )
