"""The reward `group_ranking`: judges compare the rollouts of a group with each other.

As RULER does: one prompt shows all candidates, and the judge gives each a score. Their order is shuffled by a
seed, since judges prefer places; with `orders` above 1 several shuffles are averaged.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from explorers.rewards.judge_panel import JudgePanel, agreement, usable
from rft_data.core.canonical import content_id
from rft_data.core.lookup import need
from rft_data.core.rows import Message
from rft_data.core.trajectory import Trajectory
from rft_data.core.workflow import Unscored

CRITERION = "How well does the candidate do the task: is it correct, complete and clear?"
_HEAD = """Several candidates did the same task. Compare them, and score each from 0 (worst) to 1 (best).
Candidates that are equally good get equal scores; the order below means nothing.

[Criterion]
CRITERION

[Task]
"""
_TAIL = """

Reply with one JSON object: {"scores": {"1": <score>, "2": <score>, ...}}, one score for each candidate."""

_TIE = 0.5


class GroupRanking:
    """Each rollout's mean score over judges and orders, in [0, 1]; equal rollouts are shown once.

    The part `agreement` says how near the judgements are, where there are several. Rollouts that are all
    equal get 0.5 and nobody is asked; a group of one is unscored.
    """

    deadline_s = 120.0

    def __init__(
        self,
        judges: Sequence[Mapping[str, object]],
        criterion: str = CRITERION,
        orders: int = 1,
        seed: int = 0,
        sampling: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        cache: str | None = None,
        deadline_s: float = 120.0,
    ) -> None:
        """Nothing is asked yet.

        Args:
            judges, sampling, limits, cache: as `JudgePanel` takes them.
            criterion: what to compare by. orders: shuffles of the candidates, each asked of every judge.
            seed: of the shuffles. deadline_s: for one group.
        Raises: ValueError for no order.
        """
        if orders < 1:
            raise ValueError(f"orders is {orders}; wanted 1 or more")
        self._criterion = criterion
        self._orders = orders
        self._seed = seed
        self._panel = JudgePanel(judges, sampling=sampling, limits=limits, cache=cache)
        self._spoken = need("ops.judge.judge_prompts", "ops", "a judge's reward").spoken
        self._objects = need("ops.judge.judge_scores", "ops", "a judge's reward").json_objects
        self.deadline_s = deadline_s

    async def __call__(self, group: list[Trajectory]) -> list[float | Mapping[str, float]] | Unscored:
        """One value for each rollout. Unscored, as a judge's failure, when half of the judgements fail."""
        texts = [self._text(one) for one in group]
        candidates = sorted(set(texts))
        if len(group) < 2:
            return Unscored("a group of one rollout has nothing to compare it with")
        if len(candidates) < 2:
            return [_TIE] * len(group)
        orders = self._shuffled(candidates)
        prompt = self._spoken(group[0].task.messages)
        readings = await self._panel.ask(
            [(self._prompt(prompt, order), partial(self._read, order)) for order in orders]
        )
        scores = usable(readings)
        if isinstance(scores, Unscored):
            return scores
        by_text = {text: [one[text] for one in scores] for text in candidates}
        if len(readings) == 1:
            return [by_text[text][0] for text in texts]
        near = statistics.fmean(map(agreement, by_text.values()))
        return [{"reward": statistics.fmean(by_text[text]), "agreement": near} for text in texts]

    def _text(self, trajectory: Trajectory) -> str:
        """A candidate's work: its messages after the prompt, with tools; or its completion."""
        said: Sequence[Message] = trajectory.messages[trajectory.prompt_messages :]
        return str(self._spoken(said)) if len(said) > 1 else trajectory.completion

    def _shuffled(self, candidates: Sequence[str]) -> list[list[str]]:
        """The orders in which candidates are shown; the same for the same candidates and seed."""
        draw = random.Random(content_id(self._seed, candidates))  # noqa: S311 - no secret
        return [draw.sample(candidates, len(candidates)) for _ in range(self._orders)]

    def _prompt(self, prompt: str, order: Sequence[str]) -> str:
        shown = "".join(f"\n\n[Candidate {place}]\n{text}" for place, text in enumerate(order, 1))
        return _HEAD.replace("CRITERION", self._criterion) + prompt + shown + _TAIL

    def _read(self, order: Sequence[str], reply: str) -> dict[str, float] | str:
        """Each candidate's score by the last JSON object that has all of them, or why there is none."""
        found: dict[str, float] | str = f"the reply has no score for each candidate: {reply[-120:]!r}"
        for one in self._objects(reply):
            scores = one.get("scores")
            names = {str(place): text for place, text in enumerate(order, 1)}
            if not isinstance(scores, dict) or not names.keys() <= scores.keys():
                continue
            if all(isinstance(scores[name], int | float) and 0 <= scores[name] <= 1 for name in names):
                found = {text: float(scores[name]) for name, text in names.items()}
        return found
