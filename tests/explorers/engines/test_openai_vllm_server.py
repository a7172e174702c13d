"""The engine `openai`, and the operator that asks a judge, against vLLM's own server on the CPU.

They share one server, which takes seconds to start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from explorers.conversations.endpoint_model import EndpointModel
from explorers.engines.openai_engine import OpenaiEngine
from ops.runtime.pipeline import OperatorPipeline
from rft_data.core.engine import Sampling
from rft_data.core.errors import ContextOverflow, EndpointError, RowError
from rft_data.core.rows import Task
from rft_data.core.workflow import RolloutContext
from tests.explorers.engines.chat_server import version_of
from tests.ops.real_rollouts import gsm8k_rollouts, stored
from tests.ports import free_port
from tests.template import FORK
from trainers.models.tiny_model import build_tiny_model, build_tiny_tokenizer

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

ROOM = 1024
ASK = {"role": "user", "content": "2 + 2 ="}
CTX = RolloutContext("run", "g", 0, 0, "e0", "rollout", Sampling(8))
SERVE = f"""{FORK}
import multiprocessing, runpy
from vllm.v1.engine import utils
utils.get_mp_context = lambda: multiprocessing.get_context("fork")
runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
"""
"""vLLM's own server; neither it nor its engine imports again what this process's template has loaded."""
SERVER = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where vLLM serves a tiny model under the name `tiny`."""
    pytest.importorskip("vllm")
    folder = tmp_path_factory.mktemp("served")
    model = build_tiny_model(
        folder / "model", seed=3, hidden_size=64, num_layers=2, num_heads=2, max_position_embeddings=ROOM
    )
    port = free_port()
    options = {"model": model, "port": port, "max-model-len": ROOM, "max-num-seqs": 2, "dtype": "float32"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVE, *arguments, "--served-model-name", "tiny", "--enforce-eager"],
            env={**os.environ, **SERVER},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait(server, port, folder / "log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # its engine is a child of its own
            server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            direct.open(f"http://127.0.0.1:{port}/health", timeout=1.0)
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy between here and here."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_vllms_server_answers_and_refuses_as_the_engine_reads_it(base_url: str, tmp_path: Path) -> None:
    engine = OpenaiEngine(Path("tiny"), options={"base_url": base_url, "request": {"seed": 1}})
    engine.load_weights(version_of(tmp_path / "v0", base_url, "tiny"))

    async def talk() -> None:
        model = EndpointModel(engine, Sampling(8, min_tokens=8))
        first = await model.chat([ASK])
        again = [ASK, first.message, {"role": "user", "content": "more"}]
        second = await model.chat(again)
        assert (first.finish_reason, second.finish_reason) == ("length", "length")
        [row] = model.rows(Task("t", (ASK,)), CTX)
        assert [message["role"] for message in row.messages] == ["user", "assistant"] * 2
        assert row.metadata["usage"]["completion_tokens"] == 16
        assert row.sampling["endpoint"] == {"base_url": base_url, "model": "tiny", "served_by": "tiny"}
        with pytest.raises(ContextOverflow, match="maximum context length"):
            await model.chat([{"role": "user", "content": "word " * 4 * ROOM}])
        with pytest.raises(RowError, match=f"max_tokens={4 * ROOM} cannot be greater") as caught:
            await model.chat([ASK], max_tokens=4 * ROOM)
        assert not isinstance(caught.value, ContextOverflow), "a recipe's mistake is no end of a rollout"
        engine.load_weights(version_of(tmp_path / "v1", base_url, "no-such-model"))
        with pytest.raises(EndpointError, match="no-such-model"):
            await model.chat([ASK])

    asyncio.run(talk())
    assert engine.metrics()["endpoint_completion_tokens"] == 16.0
    engine.close()


def test_a_vllm_server_judges_real_solutions(base_url: str, tmp_path: Path) -> None:
    digits = build_tiny_tokenizer().convert_tokens_to_ids(["2", "9"])
    table = stored(gsm8k_rollouts(6))
    args = {
        "base_url": base_url,
        "model": "tiny",
        "template": "Rate: {completion}",
        "score": {"pattern": r"(?P<score>\d)"},
        # the model knows nothing: it is made to say one of two digits
        "sampling": {"max_tokens": 1, "logit_bias": {str(token): 100 for token in digits}},
        "cache": str(tmp_path / "judge.db"),
    }
    pipeline = OperatorPipeline([{"llm_score_mapper": args}], name="experience_ops")
    made = pipeline.run(table)
    assert set(made["verdict"].to_pylist()) == {"kept"}, made["reason"].to_pylist()
    scores = [json.loads(stats)["llm_score"] for stats in made["stats"].to_pylist()]
    assert {round(score, 6) for score in scores} <= {0.2, 0.9}
    asks_nothing = {**args, "limits": {"max_calls": 0}}
    again = OperatorPipeline([{"llm_score_mapper": asks_nothing}], name="experience_ops").run(table)
    assert again["stats"].to_pylist() == made["stats"].to_pylist()
