"""A world as an environment: it shows a text, the model replies with an action, and so on until the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Unpack

from explorers.conversations.recording import RecordingModel
from explorers.environments.making import environment_maker
from explorers.environments.pool import EnvironmentPool, Lent
from explorers.environments.text_environment import Shown, TextEnvironment
from explorers.rewards.composition import WORLD
from explorers.rewards.contract import is_finite
from explorers.rewards.scoring import Rewards
from explorers.workflows.pooled import PooledWorkflow, TurnArguments, in_reset, with_observation
from explorers.workflows.recorded import Course
from rft_data.core.engine import Engine
from rft_data.core.errors import RecipeError
from rft_data.core.rows import Experience, Task
from rft_data.core.words import RolloutEnd
from rft_data.core.workflow import RolloutContext, Unscored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RowShape(StrEnum):
    """How a rollout becomes rows."""

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
    """Keys of the environment's state before each turn."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each turn; 0 where the environment gave none."""
    scored: bool = False
    """Whether the environment gave any."""
    invalid: int = 0


class EnvironmentWorkflow(PooledWorkflow[TextEnvironment]):
    """Plays an environment: one row for a rollout, or one for each step with the state it began in."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        environment: str,
        args: Mapping[str, object] | None = None,
        actions: Mapping[str, object] | None = None,
        pattern: str | None = None,
        invalid_reward: float = 0.0,
        shape: str = RowShape.CONVERSATION,
        **limits: Unpack[TurnArguments],
    ) -> None:
        """Make a first environment and check that text can be its actions.

        Args:
            tokenizer: the model's.
            rewards: the recipe's, beside the sum of the environment's rewards.
            environment: an id of Gymnasium, or the path of a `gymnasium.Env` or of a client of OpenEnv.
            args: keyword arguments of the environment.
            actions: words of a reply and the actions that they stand for.
            pattern: where in a reply the action stands; see `GymnasiumText` and `OpenEnvText`.
            invalid_reward: of a turn whose reply has no action; the environment takes no step then.
            shape: a word of `RowShape`.
            limits: `turns` (20), `call_deadline_s` (30), and further arguments of `PooledWorkflow`.

        Raises: MissingExtraError, UnknownComponentError, RecipeError.
        """
        _check_shape(shape)
        self._name = environment
        self._invalid_reward = float(invalid_reward)
        self._step_wise = shape != RowShape.CONVERSATION
        self._history = shape != RowShape.STEP_WISE_FRESH
        make = environment_maker(environment, dict(args or {}), actions, pattern)
        pooled = partial(EnvironmentPool, environment, make, reusable=True)
        given: TurnArguments = {"turns": 20, "call_deadline_s": 30.0, **limits}
        super().__init__(tokenizer, rewards, pooled, **given)

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
        course.reward = _reward(steps, step_wise=self._step_wise)
        if not self._step_wise:
            rows = [replace(row, environment=steps.states[0]) for row in rows]
        elif rows:
            rows = _with_steps(rows, steps)
        *before, last = await self.outcome(task, rows, course)
        if last.unscored_reason is not None:  # else its steps would count, and the last one as a zero
            before = [replace(row, reward=None, reward_parts={}) for row in before]
        return [*before, last]

    async def _play(
        self, task: Task, model: RecordingModel, lent: Lent[TextEnvironment], steps: _Steps, course: Course
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

    async def _step(self, reply: str, lent: Lent[TextEnvironment], steps: _Steps) -> str:
        """Do what a reply says; returns what the model is shown next."""
        env = lent.environment
        steps.states.append(steps.shown.state)
        action = env.action(reply)
        if action is None:
            steps.invalid += 1
            steps.rewards.append(self._invalid_reward)
            return f"That is no action; wanted {env.wanted}.\n{steps.shown.text}"
        steps.shown = await lent.call(self.call_deadline_s, env.step, action)
        steps.scored = steps.scored or steps.shown.reward is not None
        steps.rewards.append(0.0 if steps.shown.reward is None else steps.shown.reward)
        return steps.shown.text


def _check_shape(shape: str) -> None:
    if shape not in set(RowShape):
        raise RecipeError(f"explorer.workflow.args.shape is {shape!r}; wanted one of: {', '.join(RowShape)}.")


def _reward(steps: _Steps, *, step_wise: bool) -> float | Unscored | None:
    """The reward of the last row: the last step's, or the sum; None where the environment has none."""
    wrong = [f"step {n} gave {reward}" for n, reward in enumerate(steps.rewards, 1) if not is_finite(reward)]
    if wrong:
        return Unscored(f"{wrong[0]}; wanted a finite number")
    if not steps.rewards or (steps.shown.done and not steps.scored):
        return None
    return steps.rewards[-1] if step_wise else sum(steps.rewards)


def _with_steps(rows: Sequence[Experience], steps: _Steps) -> list[Experience]:
    """Rows of single steps with their states, and all but the last with their rewards."""
    keyed = [replace(row, environment=state) for row, state in zip(rows, steps.states, strict=True)]
    before = [
        replace(row, reward=reward, reward_parts={WORLD: reward})
        for row, reward in zip(keyed[:-1], steps.rewards, strict=False)
    ]
    return [*before, keyed[-1]]
