"""A world as an environment of Gymnasium: it shows a text, the model's reply is an action, and so on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from explorers.conversations.model import Model
from explorers.environments.gymnasium_text import GymnasiumText, Shown, environment_maker
from explorers.environments.pool import EnvironmentPool, Lent
from explorers.rewards.composition import WORLD
from explorers.rewards.contract import is_finite
from explorers.rewards.scoring import Rewards
from explorers.workflows.pooled import PooledWorkflow, in_reset, pool_plan, with_observation
from explorers.workflows.recorded import Course
from rft_data.core.errors import RecipeError
from rft_data.core.protocols import Engine, RolloutContext, Unscored
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RolloutEnd


class RowShape(StrEnum):
    """What becomes a row."""

    CONVERSATION = "conversation"
    """The rollout: the model sees all its turns, and all are trained in one row."""
    STEP_WISE = "step_wise"
    """Each turn, with its own reward and the key of the state it began in; all before it is its prompt."""
    STEP_WISE_FRESH = "step_wise_fresh"
    """The same, and each turn is asked anew: the model sees the task and the present state only."""


@dataclass(slots=True)
class _Steps:
    """The steps of one rollout so far."""

    shown: Shown
    states: list[str] = field(default_factory=list)
    """Of the environment before each turn."""
    rewards: list[float] = field(default_factory=list)
    """Of each turn."""
    invalid: int = 0


class EnvironmentWorkflow(PooledWorkflow):
    """Plays an environment: one row for a rollout, or one for each step with the state it began in."""

    def __init__(
        self,
        tokenizer: Any,
        rewards: Rewards,
        *,
        environment: str,
        args: Mapping[str, Any] | None = None,
        actions: Mapping[str, int] | None = None,
        pattern: str | None = None,
        invalid_reward: float = 0.0,
        shape: str = RowShape.CONVERSATION,
        **limits: Any,
    ) -> None:
        """Make a first environment and check that text can be its actions.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside the sum of the environment's rewards.
            environment: an id that Gymnasium knows, or the import path of a subclass of `gymnasium.Env`.
            args: keyword arguments of the environment.
            actions: words of a reply and the actions that they stand for; see `GymnasiumText`.
            pattern: where in a reply the action stands; see `GymnasiumText`.
            invalid_reward: of a turn whose reply has no action; the environment takes no step then.
            shape: a word of `RowShape`.
            limits: `turns` (20), `call_deadline_s` (30) for one step, `pool`, and those of a conversation, as
                for tools.

        Raises: MissingExtraError, UnknownComponentError, RecipeError.
        """
        if shape not in set(RowShape):
            raise RecipeError(
                f"explorer.workflow.args.shape is {shape!r}; wanted one of: {', '.join(RowShape)}."
            )
        make = environment_maker(environment, dict(args or {}))
        self._name = environment
        self._invalid_reward = float(invalid_reward)
        self._step_wise = shape != RowShape.CONVERSATION
        self._history = shape != RowShape.STEP_WISE_FRESH
        super().__init__(
            tokenizer,
            rewards,
            EnvironmentPool(
                environment,
                lambda: GymnasiumText(make(), actions, pattern),
                pool_plan(limits.pop("pool", None)),
                reusable=True,
            ),
            **{"turns": 20, "call_deadline_s": 30.0, **limits},
        )

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout."""
        model, course = self.model(engine, ctx), Course()
        async with self.pool.lend() as lent:
            with in_reset(self._name):
                steps = _Steps(await self.pool.reset(lent, lent.environment.reset, task))
            async with self.pool.turn():
                with course.ended_by_limits():
                    await self._play(task, model, lent, steps, course)
        if steps.invalid:
            course.counts["invalid_actions"] = steps.invalid
        course.state = {"text": steps.shown.text, "done": steps.shown.done}
        rows = model.rows(task, ctx, step_wise=self._step_wise)
        course.reward = _unscored(steps.rewards)
        if not self._step_wise:
            course.reward = course.reward or sum(steps.rewards)
            rows = [replace(row, environment=steps.states[0]) for row in rows]
        elif rows:
            rows = _with_steps(rows, steps)
            course.reward = course.reward or steps.rewards[-1]
        *before, last = await self.outcome(task, rows, course)
        if last.unscored_reason is not None:  # else its steps would count, and the last one as a zero
            before = [replace(row, reward=None, reward_parts={}) for row in before]
        return [*before, last]

    async def _play(
        self, task: Task, model: Model, lent: Lent[GymnasiumText], steps: _Steps, course: Course
    ) -> None:
        """Turns of the model and steps of the environment."""
        first = with_observation(self.prompt(task), f"\n\n{steps.shown.text}")
        messages = first
        while course.turns < self.turns:
            reply = await model.chat(messages)
            course.turns += 1
            said = await self._step(reply.content, lent, steps)
            if steps.shown.done:
                return
            if self._history:
                messages = [*messages, dict(reply.message), {"role": "user", "content": said}]
            else:
                messages = with_observation(self.prompt(task), f"\n\n{said}")
        course.end = RolloutEnd.TURNS

    async def _step(self, reply: str, lent: Lent[GymnasiumText], steps: _Steps) -> str:
        """Do what a reply says; returns what the model is shown next."""
        env = lent.environment
        steps.states.append(steps.shown.state)
        action = env.action(reply)
        if action is None:
            steps.invalid += 1
            steps.rewards.append(self._invalid_reward)
            return f"That is no action; wanted {env.wanted}.\n{steps.shown.text}"
        steps.shown = await lent.call(self.call_deadline_s, env.step, action)
        steps.rewards.append(steps.shown.reward)
        return steps.shown.text


def _unscored(rewards: Sequence[float]) -> Unscored | None:
    """Why the steps' rewards are none, if one of them is no number."""
    wrong = [f"step {n} gave {one}" for n, one in enumerate(rewards, 1) if not is_finite(one)]
    return Unscored(f"{wrong[0]}; wanted a finite number") if wrong else None


def _with_steps(rows: Sequence[Experience], steps: _Steps) -> list[Experience]:
    """Rows of single steps with their states, and all but the last with their rewards."""
    keyed = [replace(row, environment=state) for row, state in zip(rows, steps.states, strict=True)]
    before = [
        replace(row, reward=reward, reward_parts={WORLD: reward})
        for row, reward in zip(keyed[:-1], steps.rewards, strict=False)
    ]
    return [*before, keyed[-1]]
