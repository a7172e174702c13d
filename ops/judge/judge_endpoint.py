"""One judging model at one endpoint: prompts in, replies or reasons out."""

from __future__ import annotations

from collections.abc import Mapping

from ops.endpoint.calls import NoAnswer, Spending
from ops.endpoint.endpoint import Endpoint, total_tokens
from ops.judge.judge_reply import Reply


class JudgeEndpoint(Endpoint):
    """Makes calls in one event loop. Leaving its `async with` block closes the connections."""

    def __init__(
        self, base_url: str, model: str, sampling: Mapping[str, object], key: str | None, spending: Spending
    ) -> None:
        """As `Endpoint`. `sampling`: further fields of every request."""
        super().__init__(base_url, key, spending)
        self._model, self._sampling = model, sampling

    async def reply(self, prompt: str) -> tuple[Reply, int]:
        """The reply to a prompt, or why there is none, and its tokens."""
        try:
            answer = await self.ask(self._model, [{"role": "user", "content": prompt}], self._sampling)
        except NoAnswer as err:
            return Reply("", str(err)), 0
        return Reply(str(answer["choices"][0]["message"].get("content") or "")), total_tokens(answer)
