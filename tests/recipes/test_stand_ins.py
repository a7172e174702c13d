"""The stand-in for a judging model answers the real client (for people: test_late_rewards.py)."""

from __future__ import annotations

import asyncio
import threading
from http.server import ThreadingHTTPServer

import pytest

from explorers.rewards.llm_judge import LlmJudge
from recipes.stand_in_judge import StandIn, verdict
from rft_data.core.rows import Task

TASK = Task("sums", ({"role": "user", "content": "What is 4 + 3 - 5 ="},), "2")


@pytest.mark.parametrize(
    ("completion", "score"),
    [("4+3=7; 7-5=2 #### 2", 1.0), ("4+3=8; 7-5=2 #### 2", 0.5), ("1-4=-3 #### 2", 1.0), ("#### 2", 0.0)],
)
def test_the_judging_reward_reads_the_share_of_true_steps_from_the_stand_in(
    completion: str, score: float
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), StandIn) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        judge = LlmJudge([{"base_url": f"http://127.0.0.1:{server.server_port}/v1", "model": "stand-in"}])
        try:
            assert asyncio.run(judge(TASK, completion)) == score
        finally:
            server.shutdown()


def test_a_prompt_of_another_form_scores_nothing() -> None:
    assert verdict("How good is 4+3=7?") == "Score: 0"
