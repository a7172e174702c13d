"""The reward `reward_model`: the score of a trained reward model, for many rollouts in one forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from explorers.rewards.conversation_scorer import Conversation, ConversationScorer
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored

_TOGETHER_S = 0.005
"""How long the first conversation of an idle model waits for others."""


class RewardModel:
    """The model's one score of the task's messages and the completion; it has no fixed range."""

    deadline_s = 60.0

    def __init__(self, model: str, device: str = "cpu", batch: int = 32, deadline_s: float = 60.0) -> None:
        """Load it, in float32; an explorer has one copy.

        Args:
            model: folder of a sequence classifier with one label, for example the stage's.
            device: torch's name, for example `cuda:1`, of the GPUs that the explorer has; engines do not make
                room for it on theirs.
            batch: most conversations that are scored in one forward pass.
            deadline_s: for one completion, what it waits for others included.
        Raises: what `ConversationScorer` raises; ValueError for a batch below 1.
        """
        if batch < 1:
            raise ValueError(f"batch is {batch}; wanted 1 or more")
        self._scorer = ConversationScorer(model, device, batch)
        self._batch, self.deadline_s = batch, deadline_s
        self._waiting: list[tuple[Conversation, asyncio.Future[float | Unscored]]] = []
        self._scoring: asyncio.Task[None] | None = None

    async def __call__(self, task: Task, completion: str) -> float | Unscored:
        """Unscored when the conversation is too long, and, as a judge's failure, when the model fails."""
        messages = [*map(dict, task.messages), {"role": "assistant", "content": completion}]
        answer: asyncio.Future[float | Unscored] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, answer))
        if self._scoring is None or self._scoring.done():
            self._scoring = asyncio.create_task(self._score_waiting())
        return await answer

    async def _score_waiting(self) -> None:
        """Score what waits, a batch after the other, until nothing does; more may come meanwhile."""
        await asyncio.sleep(_TOGETHER_S)
        while self._waiting:
            self._waiting = [one for one in self._waiting if not one[1].done()]  # the others were cancelled
            part, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
            found = await asyncio.to_thread(self._scores, [messages for messages, _ in part])
            for (_, answer), score in zip(part, found, strict=True):
                if not answer.done():
                    answer.set_result(score)

    def _scores(self, conversations: Sequence[Conversation]) -> list[float | Unscored]:
        """Their scores; when a batch fails its halves are tried: one bad conversation costs no other."""
        try:
            return self._scorer.scores(conversations)
        except Exception as err:  # noqa: BLE001 - the model, its template and its device are the user's
            if len(conversations) > 1:
                half = len(conversations) // 2
                return self._scores(conversations[:half]) + self._scores(conversations[half:])
            return [Unscored(f"the reward model failed: {type(err).__name__}: {err}", UnscoredCause.JUDGE)]
