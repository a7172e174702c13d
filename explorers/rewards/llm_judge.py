"""The reward `llm_judge`: the score that one language model or several give a completion."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from explorers.rewards.judge_panel import JudgePanel, agreement, usable
from rft_data.core.lookup import need
from rft_data.core.rows import Task
from rft_data.core.workflow import Unscored


class LlmJudge:
    """The mean of the judges' scores, scaled to [0, 1]; the part `agreement` says how near they are."""

    deadline_s = 120.0

    def __init__(
        self,
        judges: Sequence[Mapping[str, object]],
        template: str | None = None,
        score: Mapping[str, object] | None = None,
        sampling: Mapping[str, object] | None = None,
        limits: Mapping[str, object] | None = None,
        cache: str | None = None,
        deadline_s: float = 120.0,
    ) -> None:
        """Nothing is asked yet.

        Args:
            judges, sampling, limits, cache: as `JudgePanel` takes them.
            template: with {completion}, and {prompt} and {answer} if they help; None: the operator's.
            score: how a reply is read: arguments of `ops.judge.judge_scores.ScoreReader` (0 to 10).
            deadline_s: for one completion, tries and all judges included.
        """
        prompts = need("ops.judge.judge_prompts", "ops", "a judge's reward")
        self._prompts = prompts.PromptMaker(prompts.DEFAULT_TEMPLATE if template is None else template)
        self._spoken = prompts.spoken
        self._reader = need("ops.judge.judge_scores", "ops", "a judge's reward").ScoreReader(**(score or {}))
        self._panel = JudgePanel(judges, sampling=sampling, limits=limits, cache=cache)
        self.deadline_s = deadline_s

    async def __call__(self, task: Task, completion: str) -> float | Mapping[str, float] | Unscored:
        """Unscored, as a judge's failure, when half of the judges or more give no score."""
        if self._prompts.wants_answer and task.answer is None:
            return Unscored("the task has no answer, which the judge's template wants")
        prompt = self._prompts.filled(
            {"prompt": self._spoken(task.messages), "completion": completion, "answer": task.answer or ""}
        )
        readings = await self._panel.ask([(prompt, self._read)])
        scores = usable(readings)
        if isinstance(scores, Unscored):
            return scores
        mean = statistics.fmean(scores)
        return mean if len(readings) == 1 else {"reward": mean, "agreement": agreement(scores)}

    def _read(self, reply: str) -> float | str:
        (score,) = self._reader.read([reply])
        found: float | str = score
        return found
