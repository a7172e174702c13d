"""A maker of task variants: a language model behind an OpenAI-compatible endpoint asks the question anew.

Not an operator: recipes name `ops.tasks.rephrasing:rephrased` as a synthesis (rft_data.tasks.synthesis).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ops.endpoint.calls import CallLimits
from ops.judge.judge_cache import JudgeCache
from ops.judge.judge_client import JudgeClient
from rft_data.core.errors import OperatorError
from rft_data.core.rows import Experience, Task

_ASK = (
    "Rewrite the question below in other words. Keep every number, name and condition, so that the answer "
    "stays exactly the same. Reply with the rewritten question only.\n\nQuestion:\n"
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def rephrased(
    task: Task,
    experiences: Sequence[Experience],
    rng: np.random.Generator,
    *,
    base_url: str,
    model: str,
    cache: str,
    api_key_env: str | None = None,
    temperature: float = 0.7,
) -> list[Task]:
    """The task's last message in other words, with the same answer (as MetaMath does, arXiv:2309.12284).

    A reply that is empty, the same question, or has other numbers than the question makes no variant: its
    answer would be another. Nothing else vouches for the answer; keep an eye on the new tasks' pass rates.
    Args:
        base_url: up to and with `/v1`.
        cache: SQLite file of replies; with it a run that is continued makes the same variants again.
        api_key_env: NAME of the environment variable that holds the key.
    Raises: OperatorError when the endpoint does not answer within a minute, tries included; ValueError.
    """
    question = str(task.messages[-1]["content"])
    client = JudgeClient(
        base_url,
        model,
        sampling={"temperature": temperature},
        limits=CallLimits(concurrency=1, retries=2, timeout_s=30.0, deadline_s=60.0),
        cache=JudgeCache(cache),
        api_key_env=api_key_env,
    )
    [reply] = client.ask_all([_ASK + question])
    if reply.error:
        raise OperatorError(
            f"the endpoint {base_url} wrote no variant of task '{task.task_id}': {reply.error}"
        )
    text = reply.text.strip()
    if not text or text == question or _numbers(text) != _numbers(question):
        return []
    return [replace(task, messages=(*task.messages[:-1], {**task.messages[-1], "content": text}))]


def _numbers(text: str) -> Counter[str]:
    return Counter(found.replace(",", "") for found in _NUMBER.findall(text))
