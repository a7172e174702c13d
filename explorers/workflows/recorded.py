"""Parts of workflows of many turns: a recording model, the typed end of a rollout, and its reward.

The last row of a rollout holds its outcome: the reward, its parts, and in `metadata` why it ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from explorers.capture.trajectory import Trajectory
from explorers.conversations.certificate import admit
from explorers.conversations.endpoint_model import EndpointModel, chat_engine
from explorers.conversations.model import Model
from explorers.conversations.opening import Opening
from explorers.conversations.recording import RecordingModel
from explorers.conversations.template import ChatTemplate, no_template
from explorers.rewards.composition import WORLD, RewardColumns
from explorers.rewards.contract import is_finite
from explorers.rewards.scoring import Rewards
from explorers.rewards.unscored import reason_text
from explorers.workflows.single_turn import tokenizer_hash
from rft_data.core.engine import Engine
from rft_data.core.errors import BudgetSpent, ContextOverflow, RecipeError, RowError
from rft_data.core.rows import Experience, Message, Task
from rft_data.core.trajectory import ENVIRONMENT_STATE, row_trajectory
from rft_data.core.words import RolloutEnd, TemplatePolicy
from rft_data.core.workflow import RolloutContext, Unscored

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WorldReward: TypeAlias = float | Unscored | tuple[float, Mapping[str, float]] | None
"""A number, a number and its parts, why there is none, or None: the world gives no reward."""


@dataclass(slots=True)
class Course:
    """How a rollout went."""

    end: RolloutEnd = RolloutEnd.FINISHED
    reward: WorldReward = None
    compared: bool = False
    """Whether the world's reward is known only when the whole group is; see `group_world`."""
    turns: int = 0
    counts: dict[str, int | Mapping[str, int]] = field(default_factory=dict)
    """For the rows' metadata, and summed up in the metrics."""
    state: Mapping[str, object] = field(default_factory=dict)
    """State of the environment at the end, for rewards that look at it."""

    @contextmanager
    def ended_by_limits(self) -> Iterator[None]:
        """End the block where the conversation has no room, or the rollout no tokens, left."""
        try:
            yield
        except ContextOverflow:
            self.end = RolloutEnd.CONTEXT
        except BudgetSpent:
            self.end = RolloutEnd.BUDGET


class ConversationArguments(TypedDict, total=False):
    """Arguments that every workflow takes which records; see `RecordedWorkflow`."""

    budget: int | None
    template: str
    chat_template_kwargs: Mapping[str, object] | None
    system: str | None
    examples: Sequence[object] | None
    hidden_tools: bool


class RecordedWorkflow:
    """Base of the workflows whose model records what it samples."""

    always_chats = True
    """Whether it cannot do without a chat template."""
    renders: tuple[str, ...] = ()
    """Scenarios of the certificate that its template must be able to render."""
    room: int | None = None
    """Most tokens that the rows of one rollout may have; None: no limit."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        budget: int | None = None,
        template: str = TemplatePolicy.FORK,
        chat_template_kwargs: Mapping[str, object] | None = None,
        system: str | None = None,
        examples: Sequence[object] | None = None,
        hidden_tools: bool = False,
    ) -> None:
        """Look at the chat template; what is wrong with it shows at the start.

        Args:
            tokenizer: the model's; None where an endpoint renders the messages.
            rewards: the recipe's.
            budget: most tokens that one rollout may sample; None: no limit.
            template: a word of `TemplatePolicy`.
            chat_template_kwargs: what the template takes beside messages and tools (`enable_thinking`).
            system: system prompt of the tasks that have none of their own.
            examples: solved examples that come before the task; see `Opening`.
            hidden_tools: whether a template may do that shows no tools.

        Raises: RecipeError for a value out of range, and for a template that `template` refuses.
        """
        if budget is not None:
            whole_number("budget", budget, least=1)
        if template not in set(TemplatePolicy):
            raise RecipeError(
                f"explorer.workflow.args.template is {template!r}; wanted one of: "
                f"{', '.join(TemplatePolicy)}."
            )
        self._rewards = rewards
        self._opening = Opening(system, examples)
        self._policy = TemplatePolicy(template)
        self._hidden_tools = hidden_tools
        self._template, self._tokenizer_hash = self._certified(tokenizer, chat_template_kwargs)
        self._budget = budget
        self._counts: Counter[str] = Counter()

    def model(self, engine: Engine, ctx: RolloutContext) -> RecordingModel:
        """The model of one rollout."""
        if self._template is None:
            return EndpointModel(chat_engine(engine), ctx.sampling, budget=self._budget, room=self.room)
        return Model(
            engine,
            self._template,
            ctx.sampling,
            tokenizer_hash=self._tokenizer_hash,
            budget=self._budget,
            room=self.room,
            policy=self._policy,
        )

    @property
    def template(self) -> ChatTemplate:
        """The model's. Raises: RecipeError where an endpoint renders the messages."""
        if self._template is None:
            raise RecipeError(
                "explorer.workflow.args.server is 'vllm', and the engine 'openai' serves no weights; "
                "remove it for the small server."
            )
        return self._template

    def trajectory(self, ctx: RolloutContext) -> Trajectory:
        """The turns of one rollout whose prompts vLLM's server renders."""
        return Trajectory(
            id=f"{ctx.group_id}/{ctx.member}",
            template=self.template,
            sampling=ctx.sampling,
            tokenizer_hash=self._tokenizer_hash,
            policy=self._policy,
            budget=self._budget,
            room=self.room,
        )

    def _certified(
        self, tokenizer: PreTrainedTokenizerBase | None, arguments: Mapping[str, object] | None
    ) -> tuple[ChatTemplate | None, str]:
        """The chat template and the hash of its tokenizer; none without a tokenizer."""
        if tokenizer is None:
            no_template(arguments)
            return None, ""
        template = ChatTemplate(tokenizer, arguments)
        if self.always_chats or tokenizer.chat_template is not None:
            admit(template, self._policy, self.renders, hidden_tools=self._hidden_tools)
        return template, tokenizer_hash(tokenizer)

    def prompt(self, task: Task) -> tuple[Message, ...]:
        """The task's messages, after the recipe's system prompt (where they have none) and examples."""
        return self._opening.before(task.messages)

    async def outcome(self, task: Task, rows: Sequence[Experience], course: Course) -> list[Experience]:
        """The rows of a rollout, with its outcome on the last one.

        Raises: RowError when nothing was sampled.
        """
        if not rows:
            raise RowError(f"nothing was sampled before the rollout ended ({course.end}); see its prompt.")
        self._count(course)
        last = rows[-1]
        state = {ENVIRONMENT_STATE: course.state} if course.state else {}
        metadata = {**last.metadata, "end": str(course.end), "turns": course.turns, **course.counts, **state}
        last = replace(last, metadata=metadata)
        scored = await self._rewards.score(task, row_trajectory(task, [last]))
        columns = with_world(scored, course.reward)
        if course.reward is None and not course.compared and not self._rewards.composition.parts:
            columns["unscored_reason"] = (
                f"the world gave no reward (its end: {course.end}), and the recipe has none"
            )
        return [*rows[:-1], replace(last, **columns)]

    def metrics(self) -> dict[str, float]:
        """Counts since the last call."""
        counts, self._counts = self._counts, Counter()
        return {name: float(counts[name]) for name in sorted({"turns", *counts})}

    def close(self) -> None:
        """End what the workflow holds; idempotent."""

    def _count(self, course: Course) -> None:
        self._counts["turns"] += course.turns
        if course.end is not RolloutEnd.FINISHED:
            self._counts[f"rollouts_ended_by_{course.end}"] += 1
        for name, value in course.counts.items():
            if isinstance(value, Mapping):
                self._counts.update({f"{name}_{kind}": count for kind, count in value.items()})
            else:
                self._counts[name] += value


def with_world(columns: RewardColumns, given: WorldReward) -> RewardColumns:
    """The reward columns of a row, with the world's own reward added as the part `world`, of weight 1."""
    checked = _checked(given)
    if checked is None:
        return {**columns}
    if isinstance(checked, Unscored):
        reasons = [columns["unscored_reason"], reason_text(f"reward '{WORLD}'", checked)]
        return {**columns, "reward": None, "unscored_reason": "; ".join(filter(None, reasons)) or None}
    value, parts = checked
    known = {**columns["reward_parts"], WORLD: value, **{f"{WORLD}.{name}": parts[name] for name in parts}}
    alone = not columns["reward_parts"] and columns["unscored_reason"] is None and columns["reward"] is None
    total = value if alone else None if columns["reward"] is None else columns["reward"] + value
    found: RewardColumns = {**columns, "reward": total, "reward_parts": known}
    if total is not None and not is_finite(total):
        return {**found, "reward": None, "unscored_reason": f"the sum of the rewards is {total}"}
    return found


def whole_number(name: str, value: object, *, least: int) -> int:
    """`value`, when it is a whole number of at least `least`. Raises: RecipeError when it is not."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise RecipeError(
            f"explorer.workflow.args.{name} is {value!r}; wanted a whole number, {least} or more."
        )
    return value


def _checked(given: object) -> tuple[float, Mapping[str, float]] | Unscored | None:
    """The world's reward; anything but a reward becomes Unscored with a reason."""
    if given is None or isinstance(given, Unscored):
        return given
    value, parts = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if is_finite(value) and isinstance(parts, Mapping) and all(map(is_finite, parts.values())):
        return float(value), {str(name): float(part) for name, part in parts.items()}
    return Unscored(f"gave {given!r:.200}; wanted a finite number, (number, parts), Unscored or None")
