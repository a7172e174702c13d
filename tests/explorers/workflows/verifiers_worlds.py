"""Real environments of verifiers, as its users write them."""

from __future__ import annotations

import asyncio
from typing import Any

import verifiers as vf
from datasets import Dataset

from rft_data.core.rows import Task
from rft_data.tasks.verifiers_environment import verifiers_tasks

PLACE = __name__
DATA = [
    {"question": "2 + 3", "answer": "5", "info": {"level": 1}},
    {"question": "4 + 4", "answer": "8", "info": {"level": 2}},
]
CLEANED: list[str] = []
TORN_DOWN: list[str] = []


def settings(name: str, **args: Any) -> dict[str, Any]:
    """The workflow of a recipe that plays one of these environments."""
    return {"use": "verifiers", "args": {"environment": f"{PLACE}:{name}", "args": args}}


def tasks(name: str, **args: Any) -> list[Task]:
    """The tasks of one of these environments."""
    return verifiers_tasks(f"{PLACE}:{name}", args, size=None, taskset="sums", heldout=0.0)


def right(completion: Any, answer: str) -> float:
    """The last message is the answer."""
    return float(completion[-1]["content"].strip() == answer)


def short(completion: Any, **kwargs: Any) -> float:
    return float(len(completion[-1]["content"]) < 3)


async def raising(completion: Any) -> float:
    raise ConnectionError("the database is away")


def wordy(completion: Any) -> str:
    return "very good"


def load_environment(system_prompt: str | None = "Add.", rubric: str = "right") -> vf.Environment:
    """A question and an answer."""
    funcs = {"right": [right, short], "raising": [right, raising], "wordy": [wordy]}[rubric]
    weights = [1.0, 0.5][: len(funcs)]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(DATA),
        eval_dataset=Dataset.from_list([{"question": "1 + 1", "answer": "2"}]),
        system_prompt=system_prompt,
        few_shot=[{"role": "user", "content": "0 + 1"}, {"role": "assistant", "content": "1"}],
        rubric=vf.Rubric(funcs=funcs, weights=weights),
    )


class Hints(vf.MultiTurnEnv):
    """Says more or less until the number is found."""

    def __init__(self, failure: str = "", **kwargs: Any) -> None:
        super().__init__(dataset=Dataset.from_list(DATA), **kwargs)
        self.failure = failure

    async def setup_state(self, state: vf.State) -> vf.State:
        state["tries"] = 0
        return state

    @vf.stop
    async def found(self, state: vf.State) -> bool:
        if not state["trajectory"]:
            return False
        return str(state["trajectory"][-1]["completion"][-1]["content"]) == state["answer"]

    @vf.cleanup
    async def free(self, state: vf.State) -> None:
        CLEANED.append(state["answer"])

    @vf.teardown
    async def end(self) -> None:
        TORN_DOWN.append("hints")

    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        state["tries"] += 1
        if self.failure == "infrastructure" and len(CLEANED) == 0:
            raise vf.SandboxError("the sandbox died")
        if self.failure == "bug":
            raise KeyError("no such thing")
        if self.failure == "slow":
            await asyncio.sleep(30)
        if self.failure == "hot":
            await state["client"].chat.completions.create(model="policy", messages=messages, temperature=0.2)
        return [{"role": "user", "content": "more"}]


def hints(failure: str = "", max_turns: int = 4, **kwargs: Any) -> vf.Environment:
    return Hints(failure, max_turns=max_turns, rubric=vf.Rubric(funcs=[right]), **kwargs)


def add(x: int, y: int) -> int:
    """Add two numbers.

    Args:
        x: the first.
        y: the second.
    """
    return x + y


def calculator() -> vf.Environment:
    return vf.ToolEnv(dataset=Dataset.from_list(DATA), tools=[add], rubric=vf.Rubric(funcs=[right]))


def both() -> vf.Environment:
    return vf.EnvGroup([hints(), calculator()], env_names=["hints", "calculator"])


def compared(failure: str = "") -> vf.Environment:
    """Right answers count 1; the shortest of a group gets half a point more."""

    def shortest(completions: Any, states: Any) -> list[float]:
        said = [len(one[-1]["content"]) for one in completions]
        if failure == "group":
            raise ConnectionError("the database is away")
        return [float(one == min(said)) for one in said[: 1 if failure == "too few" else None]]

    async def own(completion: Any, answer: str) -> float:
        await asyncio.sleep(0)
        if failure == "one" and completion[-1]["content"] == "five":
            raise ConnectionError("the database is away")
        return right(completion, answer)

    rubric = vf.Rubric(funcs=[own, shortest], weights=[1.0, 0.5])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(DATA), rubric=rubric)


def one_compares() -> vf.Environment:
    return vf.EnvGroup([compared(), calculator()], env_names=["compared", "calculator"])


class Ranking(vf.Rubric):
    """Gives the first of a group a point: alone, each would be the first."""

    async def score_group(self, states: Any) -> None:
        await super().score_group(states)
        for place, state in enumerate(states):
            state["reward"] = float(place == 0)


def ranked() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=Dataset.from_list(DATA), rubric=vf.RubricGroup([Ranking(funcs=[right])]))


def unscored() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=Dataset.from_list(DATA))


def truncated() -> vf.Environment:
    return vf.SingleTurnEnv(dataset=Dataset.from_list(DATA), sampling_args={"top_p": 0.9, "temperature": 0.3})


def texts() -> vf.Environment:
    async def longer(completion: str, answer: str) -> float:
        return float(answer in completion)

    rows = [{"prompt": "2 + 3 =", "answer": "5"}]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), message_type="completion", rubric=vf.Rubric(funcs=[longer])
    )


def nothing() -> str:
    return "no environment"
