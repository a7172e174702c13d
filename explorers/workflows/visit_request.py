"""A request of a client of a served run: what it asks for, of which trajectory, and with which key."""

from __future__ import annotations

from dataclasses import dataclass, field

from explorers.capture import answers
from explorers.capture.asgi import Receive, Scope, Send
from explorers.conversations.model_app import MAX_BODY
from explorers.workflows.rollout_server import bearer_key

_PREFIXES = ("t", "trajectories")
_TOLD_BYTES = 1 << 16
"""Longest body of what is said of a trajectory."""


@dataclass(slots=True)
class VisitRequest:
    """An HTTP request, and how it is refused."""

    scope: Scope
    receive: Receive
    send: Send
    what: str = field(init=False)
    """Method and path; of a request about a trajectory, the path after its id."""
    prefix: str = field(init=False)
    """First part of the path: `t` for the model, `trajectories` for what is said of a trajectory."""
    name: str = field(init=False)
    """Id of the trajectory that it is about; empty without one."""
    rest: str = field(init=False)
    """The path after that."""

    def __post_init__(self) -> None:
        _, self.prefix, self.name, self.rest = [*self.scope["path"].split("/", 3), "", "", ""][:4]
        if self.prefix not in _PREFIXES:
            self.name = ""
        self.what = f"{self.scope['method']} {self.rest if self.name else self.scope['path']}"

    @property
    def opens(self) -> bool:
        """Whether it opens a trajectory."""
        return self.what == "POST /trajectories"

    @property
    def samples(self) -> bool:
        """Whether it goes to the model, and not to what is said of its trajectory."""
        return self.prefix == "t" and self.what != "POST reward"

    @property
    def most_bytes(self) -> int:
        """How long its body may be."""
        return MAX_BODY if self.samples else _TOLD_BYTES

    @property
    def given(self) -> bytes:
        """The key that it carries."""
        return bearer_key(self.scope)

    async def refuse(self, status: int, text: str, wait_s: int | None = None) -> None:
        """Answer with an error, in the form that clients of its route expect."""
        await answers.refuse(self.send, f"/{self.rest}", status, text, wait_s=wait_s)
