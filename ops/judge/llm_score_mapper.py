"""`llm_score_mapper`: a language model scores each completion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Mapper

from ops.base import ArrowMapper, append_or_replace
from ops.endpoint.calls import CallLimits
from ops.judge.judge_cache import JudgeCache
from ops.judge.judge_client import JudgeClient
from ops.judge.judge_prompts import DEFAULT_TEMPLATE, PLACES, PromptMaker
from ops.judge.judge_reply import Reply
from ops.judge.judge_scores import ScoreReader
from ops.lance.store import operator_store
from ops.rewards.effective import effective_rewards, with_shaped_reward

_SAMPLING: Mapping[str, object] = {"temperature": 0.0, "max_tokens": 256}


@OPERATORS.register_module("llm_score_mapper")
class LlmScoreMapper(ArrowMapper, Mapper):
    """Writes `llm_score` in [0, 1]: the score that a model behind an OpenAI-compatible endpoint gives a row.

    Calls run side by side; equal prompts are asked once; replies are kept in a SQLite file under the hash of
    (endpoint, model, prompt, sampling), so neither a retry nor a restart asks twice. A row without a usable
    score (no reply, none of the expected form, out of range, no answer for `{answer}`) is quarantined with
    the reason, or with on_failure="keep" stays with a null score and the reason in `llm_score_error`.
    shape="add": shaped_reward = (shaped_reward where set, else reward) + weight * score; shape="replace":
    weight * score. A missing reward stays missing under "add"; so does one without a score, under both.
    An empty completion is asked about like any other. Groups do not matter.
    """

    optional_columns = (
        *PLACES,
        *("messages", "prompt_messages", "taskset", "task_id"),
        *("reward", "shaped_reward", "llm_score"),
    )

    def __init__(  # noqa: PLR0913 - the arguments are the keys that recipes give
        self,
        base_url: str = "",
        model: str = "",
        template: str = DEFAULT_TEMPLATE,
        score: Mapping[str, Any] | None = None,
        shape: Literal["none", "add", "replace"] = "none",
        weight: float = 1.0,
        on_failure: Literal["quarantine", "keep"] = "quarantine",
        sampling: Mapping[str, Any] | None = None,
        limits: Mapping[str, Any] | None = None,
        cache: str | None = None,
        api_key_env: str | None = None,
        buffer: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Nothing is asked yet.

        base_url: up to and with /v1. template: with {prompt}, {completion} and {answer} in it.
        score: how to read a reply, arguments of `ops.judge.judge_scores.ScoreReader`.
        sampling: further fields of the request (default: temperature 0, max_tokens 256).
        limits: arguments of `ops.endpoint.calls.CallLimits`. cache: path of the SQLite file; None: none.
        api_key_env: NAME of the environment variable with the key. buffer: uri of the store with the tasks,
        when {answer} is wanted outside of a run and the rows have no column `answer`.
        """
        super().__init__(*args, **kwargs)
        if shape not in ("none", "add", "replace") or on_failure not in ("quarantine", "keep"):
            raise ValueError(
                f"shape is {shape!r} and on_failure {on_failure!r}; "
                "wanted none|add|replace and quarantine|keep"
            )
        if not np.isfinite(weight):
            raise ValueError(f"weight is {weight}; wanted a finite number")
        self.shape = shape
        self.weight = weight
        self.on_failure = on_failure
        self.buffer = buffer
        self._reader = ScoreReader(**(score or {}))
        self._prompts = PromptMaker(template)
        self._client = JudgeClient(
            base_url,
            model,
            sampling={**_SAMPLING, **(sampling or {})},
            limits=CallLimits(**(limits or {})),
            cache=JudgeCache(cache),
            api_key_env=api_key_env,
        )
        self.needs_store = self._prompts.wants_answer
        self.required_columns = ("completion_text", *(("reward",) if shape == "add" else ()))

    def process_table(self, table: pa.Table) -> pa.Table:
        """Add the scores.

        Raises: ValueError for a row that has none, unless on_failure is "keep"; OperatorError when there is
            no store to find answers in, or no key in the environment.
        """
        scores, errors = self._scores(table)
        failed = [error for error in errors if error]
        if failed and self.on_failure == "quarantine":
            raise ValueError(failed[0])
        column = pa.array(scores, pa.float32(), mask=np.isnan(scores))
        table = append_or_replace(table, "llm_score", column)
        if self.on_failure == "keep":
            why = pa.array([error or None for error in errors], pa.string())
            table = append_or_replace(table, "llm_score_error", why)
        if self.shape == "none":
            return table
        base = effective_rewards(table) if self.shape == "add" else 0.0
        return with_shaped_reward(table, base + self.weight * scores)

    def _scores(self, table: pa.Table) -> tuple[npt.NDArray[np.float64], list[str]]:
        """By row: the score in [0, 1] or NaN, and why there is none or an empty text."""
        answers = self._answers_wanted(table)
        prompts = self._prompts.prompts(table, answers)
        asked = [place for place, prompt in enumerate(prompts) if prompt is not None]
        replies: dict[int, Reply] = dict(
            zip(asked, self._client.ask_all([prompts[place] or "" for place in asked]), strict=True)
        )
        scores, errors = np.full(table.num_rows, np.nan), ["the task has no answer"] * table.num_rows
        values = self._reader.read([reply.text for reply in replies.values()])
        for (place, reply), value in zip(replies.items(), values, strict=True):
            errors[place] = reply.error or (self._client.without_key(value) if isinstance(value, str) else "")
            if not errors[place] and not isinstance(value, str):
                scores[place] = value
        return scores, errors

    def _answers_wanted(self, table: pa.Table) -> object:
        """The store to read answers from; None if the template needs none or the rows have them."""
        if not self._prompts.wants_answer or "answer" in table.column_names:
            return None
        return operator_store(self, "llm_score_mapper")
