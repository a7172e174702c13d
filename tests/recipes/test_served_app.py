"""The example of a web application: what its users ask and like are a run's rows and rewards."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from recipes.served_app import application
from rft_data.core.rows import Experience
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.workflows.test_served import TOKEN, Run, reachable, running


@pytest.mark.slow
@pytest.mark.parametrize("up", [True, False])
def test_a_question_and_its_thumb_are_a_row_with_a_reward(up: bool) -> None:
    tokenizer = trained_tokenizer()
    tokenizer.chat_template = QWEN25

    async def story() -> None:
        async with running(tokenizer, "<b>four</b>", "five", guests=0) as run:
            waiting = run.wait(0)
            await reachable(run)
            (row,) = await used(run, waiting)
            assert row.reward == float(up)
            assert row.completion_text == "<b>four</b>"
            assert row.messages[0]["content"] == "two and two?"

    async def used(run: Run, waiting: asyncio.Task[Any]) -> list[Experience]:
        transport = httpx.ASGITransport(app=application(run.base, TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as browser:
            page = (await browser.get("/")).text
            assert "/ask" in page
            assert "innerHTML" not in page, "what a model wrote is shown as text"
            assert TOKEN not in page
            said = (await browser.post("/ask", json={"question": "two and two?"})).json()
            assert said.keys() == {"id", "answer"}, "a browser gets no key"
            assert (await browser.post("/ask", json={"question": "another"})).status_code == 503
            assert (await browser.post("/ask", json={"question": ""})).status_code == 422
            thumb = {"id": said["id"], "up": up}
            assert (await browser.post("/thumb", json=thumb)).json() == {"stored": True}
            assert (await browser.post("/thumb", json=thumb)).status_code == 404
            rows: list[Experience] = await waiting
            return rows

    asyncio.run(story())
