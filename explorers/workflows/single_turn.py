"""The simplest workflow: one prompt, one completion, one experience."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from explorers.conversations.messages import with_system
from explorers.conversations.template import template_arguments
from explorers.rewards.scoring import Rewards
from rft_data.core.protocols import Completion, Engine, RolloutContext
from rft_data.core.rows import Experience, Task, content_id, experience_id_of
from rft_data.core.trajectory import Trajectory


class SingleTurn:
    """Renders the task's messages with the chat template, samples one answer and scores it."""

    def __init__(
        self,
        tokenizer: Any,
        rewards: Rewards,
        *,
        system: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Ready to play.

        Args:
            tokenizer: the model's; it must have a chat template.
            rewards: score the answer.
            system: system prompt of the tasks that have none of their own.
            chat_template_kwargs: what the template takes beside messages, for example `enable_thinking`.

        Raises: RecipeError for an argument that the template does not use.
        """
        self._system = system
        self._template_arguments = template_arguments(tokenizer, chat_template_kwargs)
        self._tokenizer = tokenizer
        self._rewards = rewards
        self._tokenizer_hash = tokenizer_hash(tokenizer)

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout."""
        messages = with_system(task.messages, self._system)
        prompt_ids = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=True,
            return_dict=False,
            **self._template_arguments,
        )
        completion = await engine.generate(prompt_ids, ctx.sampling)
        text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        tokens = _tokens(prompt_ids, completion)
        rollout = Trajectory(
            task=task,
            completion=text,
            messages=(*messages, {"role": "assistant", "content": text}),
            prompt_messages=len(messages),
            token_ids=tokens["token_ids"],
            action_mask=tokens["action_mask"],
            finish_reason=completion.finish_reason,
            member=ctx.member,
        )
        return [
            Experience(
                experience_id=experience_id_of(ctx.run_id, task.key, ctx.attempt, ctx.group_id, ctx.member),
                source=ctx.source,
                run_id=ctx.run_id,
                taskset=task.taskset,
                task_id=task.task_id,
                group_id=ctx.group_id,
                attempt=ctx.attempt,
                member=ctx.member,
                explorer_id=ctx.explorer_id,
                **tokens,
                messages=rollout.messages,
                prompt_messages=rollout.prompt_messages,
                completion_text=text,
                finish_reason=completion.finish_reason,
                **await self._rewards.score(task, rollout),
                sampling=ctx.sampling.stored(),
                tokenizer_hash=self._tokenizer_hash,
            )
        ]


def tokenizer_hash(tokenizer: Any) -> str:
    """Content hash of all that maps messages to token ids: vocabulary, rules and chat template.

    Padding and truncation do not count: callers change them at run time.
    """
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    core.pop("padding", None)
    core.pop("truncation", None)
    return content_id(core, tokenizer.chat_template)


def _tokens(prompt_ids: list[int], completion: Completion) -> dict[str, Any]:
    """The token columns of an experience; positions count from the start of the prompt."""
    start, sampled = len(prompt_ids), len(completion.token_ids)
    versions = [version for version, _, _ in completion.version_spans]
    return {
        "token_ids": [*prompt_ids, *completion.token_ids],
        "prompt_length": start,
        "action_mask": [0] * start + [1] * sampled,
        "logprobs": [0.0] * start + list(completion.logprobs),
        "version_min": min(versions, default=None),
        "version_max": max(versions, default=None),
        "version_spans": [(v, first + start, end + start) for v, first, end in completion.version_spans],
    }
