"""Broadcasts to an explorer in another process, by gloo or between GPUs, and what happens without a GPU."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from explorers.transports import group, group_sender
from explorers.transports.gpus import free_gpu
from explorers.transports.group_sender import GroupSender
from rft_data.core.errors import EngineError
from rft_data.core.files import file_digest

ROOT = Path(__file__).parents[3]
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="is about a machine without a GPU")
TWO_GPUS = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="needs two GPUs: NCCL takes none twice in one group"
)
EXPLORER = """\
import json, sys
from pathlib import Path
from explorers.transports import make_transport
from rft_data.core.files import file_digest
from rft_data.core.rows import WeightRef

order = json.load(sys.stdin)
transport = make_transport(**order["transport"])
for ref in order["refs"]:
    with transport.fetch(WeightRef(**ref)) as arrived:
        print(json.dumps({name: file_digest(Path(path)) for name, path in arrived.source["files"].items()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "by"),
    [
        ("gloo", "gloo"),
        pytest.param("nccl", "gloo", marks=WITHOUT_GPU),
        pytest.param("nccl", "nccl", marks=[pytest.mark.gpu, TWO_GPUS]),
    ],
)
def test_another_process_gets_the_same_bytes_by_any_backend(
    tied: Any, backend: str, by: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[tuple[str, str]] = []
    means = GroupSender._means
    monkeypatch.setattr(GroupSender, "_means", lambda *args: taken.append(found := means(*args)) or found)
    sender, refs = GroupSender(backend, "127.0.0.1", or_gloo=True), [tied.ref(name) for name in "ab"]
    sender.offer(refs[0], ["one"])
    where = {"use": backend, "host": sender.host, "port": sender.port, "explorer": "one"}
    order = {"transport": where, "refs": [dataclasses.asdict(ref) for ref in refs]}
    with subprocess.Popen(
        [sys.executable, "-c", EXPLORER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0"},
    ) as explorer:
        assert explorer.stdin is not None
        assert explorer.stdout is not None
        explorer.stdin.write(json.dumps(order))
        explorer.stdin.close()
        got = [json.loads(explorer.stdout.readline())]
        sender.offer(refs[1], ["one"])
        got.append(json.loads(explorer.stdout.readline()))
    sender.close()
    assert got == [{"model.safetensors": file_digest(Path(ref.path) / "model.safetensors")} for ref in refs]
    assert [one for one, _ in taken] == [by, by]
    assert caplog.text.count("they go by 'gloo'") == (1 if by != backend else 0)


@pytest.mark.slow
def test_the_recipes_own_nccl_is_refused_without_a_gpu_and_not_exchanged(
    tied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (group, group_sender):  # both ends see the one GPU of a node
        monkeypatch.setattr(module, "seen_gpus", lambda: ["GPU-1"])
    sender, ref = GroupSender("nccl", "127.0.0.1"), tied.ref("a")
    sender.offer(ref, ["one"])
    with pytest.raises(EngineError, match=r"no GPU on 127\.0\.0\.1 besides the explorers'; start the run"):
        group.nccl(sender.host, sender.port, "one", 60.0).fetch(ref)
    sender.close()


@pytest.mark.parametrize(
    ("seen", "taken", "free"),
    [
        (["a", "b", "c"], {"a"}, "cuda:2"),
        (["a", "b", "c"], {"b", "c"}, "cuda:0"),
        (["a"], {"a"}, ""),
        ([], {"a"}, ""),
    ],
)
def test_the_last_gpu_that_no_explorer_has_sends(seen: list[str], taken: set[str], free: str) -> None:
    assert free_gpu(seen, taken) == free
