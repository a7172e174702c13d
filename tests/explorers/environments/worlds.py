"""Classes of tools and environments for the tests; imported by name or from this file, as a recipe would."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import gymnasium

from rft_data.core.workflow import Unscored


class Desk:
    """Tools that behave and misbehave."""

    made: ClassVar[list[int]] = []
    closed: ClassVar[list[int]] = []
    returns: ClassVar[threading.Event] = threading.Event()
    """Ends what blocks."""

    def __init__(self, start: int = 0) -> None:
        self.made.append(1)
        self._total = start
        self.threads = {threading.get_ident()}

    def reset(self, task: Any) -> str:
        self.threads.add(threading.get_ident())
        self._total = 0
        return f" (desk of {task.taskset})"

    def add(self, number: int, times: int = 1) -> int:
        """Add a number to the total.

        Args:
            number: what is added.
            times: how often.
        """
        self.threads.add(threading.get_ident())
        self._total += number * times
        return self._total

    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: how long.
        """
        await asyncio.sleep(seconds)
        return "waited"

    async def meet(self) -> str:
        """Wait until another call of this tool waits too."""
        self._waiting = getattr(self, "_waiting", None) or asyncio.Barrier(2)
        await self._waiting.wait()
        return "met"

    def block(self, seconds: float) -> str:
        """Wait without letting others run.

        Args:
            seconds: how long.
        """
        self.returns.wait(seconds)
        return "blocked"

    def fail(self) -> str:
        """Raise."""
        raise ZeroDivisionError("no such sum")

    def reward(self) -> float:
        return float(self._total)

    def close(self) -> None:
        self.closed.append(1)


class TrlCounter:
    """As TRL's documentation writes an environment: `reset` takes the row's fields, `get_reward` scores."""

    def reset(self, *, answer: str, **kwargs: Any) -> str | None:
        self._answer = int(answer)
        self._count = 0
        return f" Count to {answer}, {kwargs['unit']}."

    def increment(self, step: int) -> str:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self._count += step
        return f"counter: {self._count}"

    def get_reward(self) -> float:
        return float(self._count == self._answer)


class Undocumented:
    def add(self, number: int) -> int:
        """Add a number."""
        return number


class Untyped:
    def add(self, number):
        """Add a number.

        Args:
            number: what is added.
        """


class Greedy:
    def add(self, *numbers: int) -> int:
        """Add numbers.

        Args:
            numbers: what is added.
        """
        return sum(numbers)


class Empty:
    def reset(self, task: Any) -> None: ...


class TwoRewards:
    def add(self) -> None:
        """Add."""

    def reward(self) -> float:
        return 0.0

    def get_reward(self) -> float:
        return 0.0


class NeedyReward:
    def add(self) -> None:
        """Add."""

    def reward(self, task: Any) -> float:
        return 0.0


async def shows(task: Any, model: Any) -> float:
    picture = {"type": "image", "image": f"payload:{'0' * 32}"}
    await model.chat([{"role": "user", "content": [picture, {"type": "text", "text": "?"}]}])
    return 1.0


async def twice(task: Any, model: Any, *, praise: str = "Well done.", worth: float = 1.0) -> float:
    """Asks, and asks again."""
    first = await model.chat(task.messages)
    again = [*task.messages, first.message, {"role": "user", "content": praise}]
    second = await model.chat(again)
    return worth if second.content == task.answer else 0.0


async def endless(task: Any, model: Any) -> float:
    messages = list(task.messages)
    while True:
        messages += [(await model.chat(messages)).message, {"role": "user", "content": "Go on."}]


async def given(task: Any, model: Any) -> Any:
    """Returns what the task says, as Python would."""
    await model.chat(task.messages)
    said = task.metadata["returns"]
    return (said[0], said[1]) if isinstance(said, list) else float("nan") if said == "nan" else said


async def huge(task: Any, model: Any) -> Any:
    await model.chat(task.messages)
    return 10**400


async def careless(task: Any, model: Any) -> float:
    """Changes what it was given."""
    messages = list(task.messages)
    messages[0]["content"] += " (at once)"
    await model.chat(messages)
    task.metadata["options"].clear()
    return 1.0


async def twice_at_once(task: Any, model: Any) -> float:
    """Asks after an example, and goes on in two ways."""
    shown = [*task.messages, {"role": "assistant", "content": "4"}, {"role": "user", "content": "No."}]
    first = await model.chat(shown)
    asked = [*shown, first.message]
    ways = [[*asked, {"role": "user", "content": word}] for word in ("Why?", "How?")]
    await asyncio.gather(*map(model.chat, ways))
    return 1.0


async def away(task: Any, model: Any) -> Any:
    await model.chat(task.messages)
    return Unscored("the judge is away")


async def silent(task: Any, model: Any) -> float:
    return 1.0


async def alone(task: Any) -> float:
    return 1.0


def plain(task: Any, model: Any) -> float:
    return 1.0


class Shelf:
    """Tools that are hard on what they are given, and give what no row can hold."""

    def reset(self, options: list[int]) -> None:
        options.clear()

    def sort(self, numbers: list[int]) -> str:
        """Sort numbers.

        Args:
            numbers: what is sorted.
        """
        numbers.sort()
        return "sorted"

    def run(self) -> str:
        """Give half of a character."""
        return "half \ud83d of it"


class Fetcher:
    """A tool whose arguments have the names of those of our own functions."""

    def fetch(self, method: str, deadline_s: float) -> str:
        """Ask a server.

        Args:
            method: GET or POST.
            deadline_s: in seconds.
        """
        return f"{method} within {deadline_s:g}"


class Unlucky(Desk):
    """Its `reset` raises what the task says."""

    def reset(self, task: Any) -> str:  # type: ignore[override]
        kind = {"down": ConnectionError, "broken": KeyError}[task.metadata["raises"]]
        raise kind("the map")


class Wordless(Desk):
    """Its `reset` returns no text."""

    def reset(self, task: Any) -> Any:
        return 5


class Unmakeable(Desk):
    def __init__(self) -> None:
        raise FileNotFoundError("no such table")


class Spiteful(Desk):
    """Its `reward` raises."""

    def reward(self) -> float:
        raise ZeroDivisionError("no total")


class Lake(gymnasium.Env):
    """FrozenLake's rules in a lake of three: right, right is the goal."""

    render_mode = None

    def __init__(self, length: int = 3) -> None:
        self.action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.spaces.Discrete(length)
        self._length = length

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        self._place = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action == 1 else -1))
        home = self._place == self._length - 1
        return self._place, float(home), home, False, {}


class Pit(Lake):
    """One whose first reward is no number."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        place, reward, *rest = super().step(action)
        return place, reward if place == 2 else float("nan"), *rest  # type: ignore[return-value]


class Toll(Lake):
    """One in which every step costs a half."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        place, reward, *rest = super().step(action)
        return place, reward - 0.5, *rest  # type: ignore[return-value]
