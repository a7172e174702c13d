"""The two servers that are compared, as processes of their own: `rft serve` and vLLM's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

TOKEN = "a-token-of-this-benchmark"  # noqa: S105 - of a server that lives for a minute
RECIPE = "sums_explore"
"""Its engine is served, with another model."""
ROOM = 256
SEQUENCES = 64
_READY_S = 300.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs."""

    address: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """SIGKILL, to it and to its children."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def rft_serve(model: Path, folder: Path, threads: int, port: int | None = None) -> Iterator[Server]:
    """`rft serve` on a recipe's engine options; its rows go to `folder`. `port`: None for a free one."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port() if port is None else port
    changes = {
        "model.path": model, "explorer.engine.max_model_len": ROOM,
        "explorer.engine.options.max_num_seqs": SEQUENCES,
        "explorer.engine.options.enable_prefix_caching": "true",
    }  # fmt: skip
    command = ["-c", "from rft_data.cli.app import main; main()", "serve", RECIPE]
    command += [f"{name}={value}" for name, value in changes.items()]
    command += ["--name", "tiny", "--dir", str(folder / "served"), "--port", str(port)]
    with _started(command, port, folder, threads) as one:
        yield one


@contextmanager
def vllm_serve(model: Path, folder: Path, threads: int) -> Iterator[Server]:
    """vLLM's own server with the same options."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    options = {
        "model": model, "port": port, "served-model-name": "tiny", "max-model-len": ROOM,
        "max-num-seqs": SEQUENCES, "dtype": "float32", "generation-config": "vllm", "host": "127.0.0.1",
        "kv-cache-memory-bytes": 64 << 20,
    }  # fmt: skip
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    command = ["-m", "vllm.entrypoints.openai.api_server", *given, "--enforce-eager"]
    command += ["--enable-prefix-caching", "--disable-log-stats", "--disable-uvicorn-access-log"]
    with _started(command, port, folder, threads) as one:
        yield one


@contextmanager
def _started(command: list[str], port: int, folder: Path, threads: int) -> Iterator[Server]:
    environment: Mapping[str, str] = {
        **os.environ,
        "RFT_SERVE_TOKEN": TOKEN,
        "OMP_NUM_THREADS": str(threads),
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
    }
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, *command], env=environment, stdout=file, stderr=file, start_new_session=True
        )
    server = Server(f"http://127.0.0.1:{port}", process)
    try:
        _wait(server, log)
        yield server
    finally:
        if process.poll() is None:
            server.kill()


def _wait(server: Server, log: Path) -> None:
    """Raises: RuntimeError with the end of its output when it does not come up."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if httpx.get(f"{server.address}/health", timeout=1.0, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise RuntimeError(f"the server did not come up:\n{log.read_text()[-3000:]}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
