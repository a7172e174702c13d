"""OpenAI's chat and completion routes over one rollout's model, as an ASGI application, on any engine.

A client that asks for a stream gets the whole answer in one piece, at its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextvars import copy_context
from reprlib import repr as short
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from explorers.capture import answers
from explorers.capture.asgi import Receive, Scope, Send, read_body
from explorers.capture.elements import check_elements
from explorers.capture.fields import check_choices
from explorers.capture.refused import Refused
from explorers.conversations.asked import CLIENTS_OWN
from explorers.conversations.openai_client import RolloutClient
from explorers.conversations.rollout_app import MODEL, OVER
from rft_data.core.errors import RftError, RowError
from rft_data.core.rows import Experience, Task
from rft_data.core.text import shown
from rft_data.core.words import RolloutEnd
from rft_data.core.workflow import RolloutContext

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

T = TypeVar("T")

MAX_BODY = 32 << 20
MOST_REQUESTS = 256
"""Requests of one rollout that are read or answered at a time; more are answered 429."""
_NO_ROUTE = (
    "there is no such route here; POST /v1/chat/completions or /v1/completions. vLLM's own server has "
    "/v1/responses and /v1/messages too: with the engine vllm, say explorer.workflow.args.server: vllm."
)
_USAGE = "include_usage"


Create: TypeAlias = "Callable[..., Coroutine[object, None, ChatCompletion | Completion]]"
"""Function that answers one choice of a request, by the request's fields."""


class ModelApp:
    """Answers the requests of one rollout. See `RolloutApp`; requests may call the model anything."""

    def __init__(self, client: RolloutClient) -> None:
        """Create it in the rollout's own asyncio task, to which the metering of tokens belongs."""
        self._client = client
        self._context = copy_context()
        self._answering: set[asyncio.Task[object]] = set()
        self._under_way = 0
        self._closed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        route = (scope["method"], scope["path"])
        if route == ("GET", "/v1/models"):
            listed = [{"id": MODEL, "object": "model", "created": 0, "owned_by": "rft"}]
            await answer(send, 200, {"object": "list", "data": listed})
        elif route == ("POST", "/v1/chat/completions"):
            await self._sampled(self._client.chat.completions.create, scope, receive, send)
        elif route == ("POST", "/v1/completions"):
            await self._sampled(self._client.completions.create, scope, receive, send)
        else:
            self._client.error = RowError(_NO_ROUTE)
            await refuse(send, 404, _NO_ROUTE)

    @property
    def answering(self) -> int:
        """Requests that are being answered."""
        return len(self._answering)

    @property
    def turns(self) -> int:
        """Turns sampled so far."""
        return self._client.model.turns

    @property
    def held(self) -> int:
        """Tokens that its rows have so far."""
        return self._client.model.held

    @property
    def end(self) -> RolloutEnd | None:
        """The limit that ended the rollout."""
        return self._client.end

    @property
    def error(self) -> Exception | None:
        """The error of a failed call. The program may have caught it and gone on."""
        return self._client.error

    def rows(self, task: Task, ctx: RolloutContext) -> list[Experience]:
        """The rows of what was sampled so far, without a reward."""
        return self._client.model.rows(task, ctx)

    async def close(self) -> None:
        """Cancel what is being sampled: the turns of the rollout do not change afterwards."""
        self._closed = True
        for one in self._answering:
            one.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)

    async def _sampled(self, create: Create, scope: Scope, receive: Receive, send: Send) -> None:
        if self._under_way >= MOST_REQUESTS:
            text = f"{self._under_way} requests of this program are under way; come back later."
            await answers.refuse(send, scope["path"], 429, text, wait_s=1)
            return
        self._under_way += 1
        try:
            await self._answered(create, receive, send)
        finally:
            self._under_way -= 1

    async def _answered(self, create: Create, receive: Receive, send: Send) -> None:
        raw = await read_body(receive, MAX_BODY)
        if raw is None:
            await refuse(send, 413, f"the request is longer than {MAX_BODY} bytes.")
            return
        if self._closed:
            await refuse(send, 409, OVER)
            return
        try:
            asked = _asked(raw)
            streams, usage = _stream_asked(asked)
            choices = await self._unless_gone(_choices(create, asked), receive)
        except RowError as err:
            field = err.field if isinstance(err, Refused) else None
            await refuse(send, 400, str(err), param=field)
        except RftError as err:
            await refuse(send, 503, str(err))
        except Exception as err:  # noqa: BLE001 - an error of the API, or a fault of the engine
            code = getattr(err, "status_code", 500)
            await refuse(send, code, str(err), "context_length_exceeded" if code == 400 else None)
        else:
            if choices is None:
                return
            whole = _together(choices)
            if streams:
                await _stream(send, whole, usage=usage)
            else:
                await answer(send, 200, whole)

    async def _unless_gone(self, asked: Coroutine[object, None, T], receive: Receive) -> T | None:
        """Turn that is sampled; None if the client disconnects before. Raises: what sampling raises."""
        sampling = asyncio.get_running_loop().create_task(asked, context=self._context.copy())
        self._answering.add(sampling)
        gone = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({sampling, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not sampling.done() and gone.result().get("type") == "http.disconnect":
                return None
            if sampling.cancelled():
                raise RowError(OVER)
            return await sampling
        finally:
            gone.cancel()
            sampling.cancel()
            await asyncio.gather(sampling, gone, return_exceptions=True)
            self._answering.discard(sampling)


def inside(value: object, name: str) -> object:
    """A field of an object; None where there is no object."""
    return value.get(name) if isinstance(value, Mapping) else None


async def refuse(
    send: Send, status: int, text: str, code: str | None = None, *, param: str | None = None
) -> None:
    """Answer with an error in OpenAI's form; `param`: the field that it is about."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    await answer(send, status, {"error": {"message": text, "type": kind, "param": param, "code": code}})


async def answer(send: Send, status: int, content: Mapping[str, object]) -> None:
    """Send a JSON object."""
    raw = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(raw)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})


def request_object(raw: bytes) -> dict[str, object]:
    """The JSON object in a request's body. Raises: RowError for anything else."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as err:
        raise RowError(f"the request is no JSON ({type(err).__name__}); wanted an object.") from err
    if not isinstance(found, dict):
        raise RowError(f"the request is JSON of type {type(found).__name__}; wanted an object.")
    return found


def _asked(raw: bytes) -> dict[str, object]:
    """Raises: RowError."""
    found = request_object(raw)
    check_elements(found)
    for name in CLIENTS_OWN:
        if name in found:
            raise Refused(name, f"'{name}' is an argument of the client, and no field; leave it out.")
    return {name: value for name, value in found.items() if value is not None}


def _stream_asked(asked: dict[str, object]) -> tuple[bool, bool]:
    """Whether a stream is asked for, and whether its end is to say the usage. Raises: Refused."""
    streams = asked.pop("stream", False)
    if not isinstance(streams, bool):
        raise Refused("stream", f"'stream' is {shown(short(streams))}; wanted true or false.")
    options = asked.pop("stream_options", None)
    if options is None:
        return streams, False
    if not streams or not isinstance(options, dict):
        raise Refused(
            "stream_options",
            f"'stream_options' is {shown(short(options))}; wanted an object, and 'stream' true beside it.",
        )
    for name, value in options.items():
        if not isinstance(value, bool) or (name != _USAGE and value):
            place = f"stream_options.{shown(str(name))}"
            raise Refused(place, f"'{place}' is {shown(short(value))}, which is not supported here.")
    return streams, options.get(_USAGE, False)


async def _choices(create: Create, asked: dict[str, object]) -> list[ChatCompletion | Completion]:
    """The answers to one request, one for each of its `n` choices; they are sampled together."""
    check_choices(asked)
    count = cast("int", asked.pop("n", 1))
    sampled = [asyncio.ensure_future(create(**asked)) for _ in range(count)]
    try:
        return list(await asyncio.gather(*sampled))
    finally:
        for one in sampled:
            one.cancel()
        await asyncio.gather(*sampled, return_exceptions=True)


def _together(said: list[ChatCompletion | Completion]) -> dict[str, object]:
    """One response with the choices of several."""
    whole: dict[str, object] = said[0].model_dump(mode="json", exclude_none=True)
    whole["choices"] = [
        {**one.choices[0].model_dump(mode="json", exclude_none=True), "index": place}
        for place, one in enumerate(said)
    ]
    used = [one.usage for one in said if one.usage is not None]
    if used:
        sent, sampled = used[0].prompt_tokens, sum(one.completion_tokens for one in used)
        whole["usage"] = {"prompt_tokens": sent, "completion_tokens": sampled, "total_tokens": sent + sampled}
    return whole


async def _stream(send: Send, whole: Mapping[str, object], *, usage: bool) -> None:
    """A response as server-sent events."""
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in _events(whole, usage=usage):
        await send(
            {
                "type": "http.response.body",
                "body": f"data: {json.dumps(event)}\n\n".encode(),
                "more_body": True,
            }
        )
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _events(whole: Mapping[str, Any], *, usage: bool) -> Iterator[dict[str, object]]:
    chat = whole["object"] == "chat.completion"
    head = {
        **{name: whole[name] for name in ("id", "created", "model")},
        "object": "chat.completion.chunk" if chat else whole["object"],
    }
    for choice in whole["choices"]:
        place, reason = choice["index"], choice["finish_reason"]
        if not chat:
            piece = {"index": place, "text": choice["text"], "finish_reason": reason, "logprobs": None}
            yield {**head, "choices": [piece]}
            continue
        delta = dict(choice["message"])
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        yield {**head, "choices": [{"index": place, "delta": delta, "finish_reason": None}]}
        yield {**head, "choices": [{"index": place, "delta": {}, "finish_reason": reason}]}
    if usage:
        yield {**head, "choices": [], "usage": whole.get("usage")}
