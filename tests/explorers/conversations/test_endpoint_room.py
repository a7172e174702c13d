"""How much a client of a model behind an endpoint may have kept for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from explorers.conversations.endpoint_model import EndpointModel
from explorers.conversations.replies import BudgetSpent
from rft_data.core.engine import Sampling
from tests.explorers.engines.chat_server import ChatServer, completion, engine_at
from tests.explorers.engines.test_openai_engine import quick_and_direct

__all__ = ["quick_and_direct"]


def test_what_is_given_counts_by_its_bytes_and_is_bounded(tmp_path: Path) -> None:
    long = {"role": "user", "content": "many words " * 100}
    with ChatServer(lambda _, number: completion(content="five")) as server:
        engine = engine_at(server, tmp_path, limits={"retries": 0})
        model = EndpointModel(engine, Sampling(8), room=400)

        async def story() -> None:
            reply = await model.chat([long])
            assert 1100 // 4 < model.held < 400
            held = model.held
            with pytest.raises(BudgetSpent, match="of at most 400"):
                await model.chat([long, reply.message, long])
            assert model.held == held, "a turn that was not sampled is not held"
            await model.chat([long, reply.message, {"role": "user", "content": "Sure?"}])
            assert held < model.held < 400
            engine.close()

        asyncio.run(story())
    assert len(server.requests) == 2
