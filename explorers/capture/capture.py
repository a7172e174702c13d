"""Trajectories that are open over one engine; `gate.py` is the server that records into them.

Each has a URL prefix and a key of its own. The key is derived from the server's secret, so none is stored.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from explorers.capture.bodies import Bodies
from explorers.capture.keys import TrajectoryKeys
from explorers.capture.limits import CaptureLimits
from explorers.capture.trajectory import Trajectory
from explorers.conversations.template import ChatTemplate
from explorers.workflows.single_turn import tokenizer_hash
from rft_data.core.engine import Sampling
from rft_data.core.errors import BusyError
from rft_data.core.words import TemplatePolicy


@dataclass(slots=True)
class Open:
    """An open trajectory, and who uses it now."""

    trajectory: Trajectory
    requests: int = 0
    """Requests under way."""
    used: float = field(default_factory=time.monotonic)
    """When a request was last begun or ended."""
    held: int = 0
    """Tokens that it is counted with in `Capture.held`."""
    task_tokens: int = 0
    """Of these, for what its task is long."""


class Capture:
    """The open trajectories of one engine; all its methods are called in one event loop."""

    def __init__(
        self,
        template: ChatTemplate,
        sampling: Sampling,
        *,
        policy: TemplatePolicy = TemplatePolicy.FORK,
        limits: CaptureLimits | None = None,
        secret: str | None = None,
    ) -> None:
        """`sampling`: of trajectories that bring none; `secret`: keys are made of it, None: a random one."""
        self.limits = limits or CaptureLimits()
        self.requests = 0
        """Requests under way."""
        self.bodies = Bodies(self.limits.bodies_bytes)
        self.held = 0
        """Tokens that open trajectories held when their last requests ended."""
        self._template = template
        self._sampling = sampling
        self._policy = policy
        self._tokenizer_hash = tokenizer_hash(template.tokenizer)
        self._keys = TrajectoryKeys((secret or secrets.token_urlsafe(32)).encode())
        self._open: dict[str, Open] = {}

    def open(self, name: str | None = None, sampling: Sampling | None = None) -> Trajectory:
        """A new trajectory.

        Args: name: its id, one that was never used; None: a random one.
        Raises: BusyError when so many are open, or hold so many tokens, that no more can be.
        """
        self._check_room()
        made = Trajectory(
            id=secrets.token_hex(8) if name is None else name,
            template=self._template,
            sampling=sampling or self._sampling,
            tokenizer_hash=self._tokenizer_hash,
            policy=self._policy,
            budget=self.limits.tokens,
            room=self.limits.key_tokens,
        )
        self._open[made.id] = Open(made)
        return made

    def close(self, name: str) -> Trajectory:
        """Take no more requests for a trajectory, and forget it. Raises: KeyError when it is not open."""
        opened = self._open.pop(name)
        self.held -= opened.held
        opened.trajectory.closed = True
        return opened.trajectory

    def count(self, opened: Open, task_tokens: int = 0) -> None:
        """Take in what an open trajectory holds now; `task_tokens`: what its task is counted with."""
        if self._open.get(opened.trajectory.id) is opened:
            opened.task_tokens += task_tokens
            now = opened.trajectory.held + opened.task_tokens
            self.held += now - opened.held
            opened.held = now

    def __iter__(self) -> Iterator[Open]:
        """The open trajectories."""
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def find(self, name: str) -> Open | None:
        """An open trajectory; None when there is none of that id."""
        return self._open.get(name)

    def key(self, name: str) -> str:
        """The key of a trajectory."""
        return self._keys.key(name)

    def opens(self, name: str, given: str) -> bool:
        """Whether `given` is the key of a trajectory, open or not."""
        return self._keys.opens(name, given.encode())

    def admits(self, token: str, name: str, given: str) -> bool:
        """Whether `given` is the server's token, or the key of a trajectory."""
        return hmac.compare_digest(given.encode(), token.encode()) or (bool(name) and self.opens(name, given))

    @staticmethod
    def path(name: str) -> str:
        """The path of a trajectory's base URL."""
        return f"/t/{name}/v1"

    def _check_room(self) -> None:
        if len(self._open) >= self.limits.trajectories or self.held >= self.limits.held_tokens:
            raise BusyError(
                f"{len(self._open)} trajectories are open and hold {self.held} tokens; at most "
                f"{self.limits.trajectories} and {self.limits.held_tokens} may be: end some, or wait."
            )
