"""The simplest workflow: one prompt, one completion, one experience."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from explorers.conversations.endpoint_model import EndpointModel, chat_engine
from explorers.conversations.model import Model
from explorers.conversations.opening import Opening
from explorers.conversations.recording import RecordingModel
from explorers.conversations.rows import row_names
from explorers.conversations.template import ChatTemplate, no_template, template_arguments
from explorers.engines.images import shown
from explorers.rewards.scoring import Rewards
from rft_data.core.canonical import content_id
from rft_data.core.engine import Completion, Engine
from rft_data.core.images import PROCESSOR, for_template, image_ids
from rft_data.core.rows import Experience, Message, Task, VersionSpan
from rft_data.core.trajectory import Trajectory, row_trajectory
from rft_data.core.workflow import RolloutContext

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _TokenColumns(TypedDict):
    """The token columns of an experience."""

    token_ids: list[int]
    prompt_length: int
    action_mask: list[int]
    logprobs: list[float]
    version_min: int | None
    version_max: int | None
    version_spans: list[VersionSpan]


class SingleTurn:
    """Renders the task's messages with the chat template, samples one answer and scores it."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        rewards: Rewards,
        *,
        system: str | None = None,
        examples: Sequence[object] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> None:
        """Ready to play.

        Args:
            tokenizer: the model's, with a chat template; None where an endpoint renders the messages.
            rewards: score the answer.
            system: system prompt of the tasks that have none of their own.
            examples: solved examples that come before the task; see `Opening`.
            chat_template_kwargs: what the template takes beside messages, for example `enable_thinking`.

        Raises: RecipeError for an argument that the template does not use, and for wrong examples.
        """
        self._opening = Opening(system, examples)
        self._tokenizer = tokenizer
        self._chat_arguments = chat_template_kwargs
        self._chat: ChatTemplate | None = None  # made for the first task with tools
        self._rendered: tuple[Task, list[int]] | None = None
        self._rewards = rewards
        if tokenizer is None:
            no_template(chat_template_kwargs)
            return
        self._template_arguments = template_arguments(tokenizer, chat_template_kwargs)
        self._tokenizer_hash = tokenizer_hash(tokenizer)

    async def run(self, task: Task, engine: Engine, ctx: RolloutContext) -> list[Experience]:
        """Play one rollout."""
        messages = self._opening.before(task.messages)
        tokenizer = self._tokenizer
        if tokenizer is None:
            return await self._answered(task, messages, EndpointModel(chat_engine(engine), ctx.sampling), ctx)
        if task.tools:
            chat = self._with_tools(tokenizer, messages, task.tools)
            model = Model(engine, chat, ctx.sampling, tokenizer_hash=self._tokenizer_hash)
            return await self._answered(task, messages, model, ctx)
        images = image_ids(messages)
        prompt_ids = self._prompt_ids(tokenizer, task, messages)
        completion = await engine.generate(prompt_ids, ctx.sampling, **shown(images))
        text = tokenizer.decode(completion.token_ids, skip_special_tokens=True)
        tokens = _tokens(completion.prompt_ids or prompt_ids, completion)
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
                **row_names(task, ctx),
                **tokens,
                messages=rollout.messages,
                prompt_messages=rollout.prompt_messages,
                completion_text=text,
                finish_reason=completion.finish_reason,
                **await self._rewards.score(task, rollout),
                sampling=ctx.sampling.stored(),
                tokenizer_hash=self._tokenizer_hash,
                payloads=images,
                metadata={PROCESSOR: completion.processor} if images else {},
            )
        ]

    def _prompt_ids(
        self, tokenizer: PreTrainedTokenizerBase, task: Task, messages: Sequence[Message]
    ) -> list[int]:
        """The rendered prompt; the members of a group begin one after another, so they share one."""
        if self._rendered is not None and self._rendered[0] is task:
            return list(self._rendered[1])
        ids: list[int] = tokenizer.apply_chat_template(
            for_template(messages),
            add_generation_prompt=True,
            return_dict=False,
            **self._template_arguments,
        )
        self._rendered = task, list(ids)
        return ids

    def _with_tools(
        self,
        tokenizer: PreTrainedTokenizerBase,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, object]],
    ) -> ChatTemplate:
        """The chat template, which shows tools. Raises: RowError when it has no place for them."""
        if self._chat is None:
            self._chat = ChatTemplate(tokenizer, self._chat_arguments)
        self._chat.need_tools(messages, tools)
        return self._chat

    async def _answered(
        self, task: Task, messages: Sequence[Message], model: RecordingModel, ctx: RolloutContext
    ) -> list[Experience]:
        """The same by a model that takes messages; what it calls is part of the answer."""
        await model.chat(messages, tools=task.tools)
        [row] = model.rows(task, ctx)
        return [replace(row, **await self._rewards.score(task, row_trajectory(task, [row])))]


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Content hash of all that maps messages to token ids: vocabulary, rules and chat template.

    Padding and truncation do not count: callers change them at run time.
    """
    core = json.loads(tokenizer.backend_tokenizer.to_str())
    core.pop("padding", None)
    core.pop("truncation", None)
    return content_id(core, tokenizer.chat_template)


def _tokens(prompt_ids: Sequence[int], completion: Completion) -> _TokenColumns:
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
