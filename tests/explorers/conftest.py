"""Tiny models, their published weights and one engine per kind and model for the explorers' tests."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from rft_data.core.engine import Engine
from rft_data.core.files import write_manifest
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import Probe
from tests.explorers.conversations.conftest import trained_tokenizer
from tests.explorers.conversations.families import QWEN25
from tests.explorers.engines.held import let_go
from tests.tiny_config import tiny_config

if find_spec("vllm"):
    from vllm.platforms.cpu import CpuPlatform

    # Each engine looks through every module for kernels, 0.4 s; the first has put them all in place.
    _register = staticmethod(cache(CpuPlatform.register_triton_kernel_overrides))
    CpuPlatform.register_triton_kernel_overrides = _register

VOCABULARY, END = 96, 1
PROBE_IDS = (tuple(range(5, 25)), tuple(range(60, 30, -1)))


def tiny_model(seed: int, *, tied: bool) -> Qwen2ForCausalLM:
    """Random weights, wide enough that another seed is another distribution."""
    torch.manual_seed(seed)
    config = tiny_config(
        vocab_size=VOCABULARY,
        num_key_value_heads=1,
        initializer_range=0.12,
        tie_word_embeddings=tied,
        eos_token_id=END,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).float().eval()


@torch.no_grad()
def reference_logprobs(model: Qwen2ForCausalLM, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Logprobs of the whole vocabulary after each token, from one plain forward: (T, V)."""
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return (logits.double() / temperature).log_softmax(-1)


def publish(model: Qwen2ForCausalLM, directory: Path, probed: Qwen2ForCausalLM | None = None) -> Path:
    """Write a weight directory; the probe is of `probed` when that is given."""
    model.save_pretrained(directory)
    measured = []
    for ids in PROBE_IDS:
        table = reference_logprobs(probed or model, list(ids))[:-1]
        scored = table.gather(-1, torch.tensor(ids)[1:, None])[:, 0]
        measured.append(np.concatenate([[0.0], scored.numpy()]).astype(np.float32))
    Probe(PROBE_IDS, tuple(measured)).save(directory)
    return directory


@dataclass
class Published:
    """Two models of one architecture, a folder with the first, and a source of new versions."""

    folder: Path
    tied: bool
    models: dict[str, Qwen2ForCausalLM] = field(init=False)
    base: Path = field(init=False)
    versions: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.models = {name: tiny_model(seed, tied=self.tied) for name, seed in (("a", 1), ("b", 2))}
        self.base = self.folder / "base"
        self.models["a"].save_pretrained(self.base)

    def logprobs(self, name: str, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
        """The reference's logprobs of a model: (T, V)."""
        return reference_logprobs(self.models[name], ids, temperature)

    def ref(self, name: str, *, probed: str | None = None, step: int = 0) -> WeightRef:
        """Publish a model under the next version."""
        version = next(self.versions)
        directory = self.folder / f"v{version}"
        publish(self.models[name], directory, self.models[probed] if probed else None)
        write_manifest(directory, {"run_id": "run", "version": version, "step": step})
        return WeightRef("run", version, step, str(directory))


@dataclass
class Bench(Published):
    """The same with an engine of one kind."""

    make: Callable[..., Engine] = field(kw_only=True)
    room: int = 128
    """`max_model_len` of the engine."""
    steps_by_itself = False
    """Whether it goes on while the test does something else."""
    engine: Engine = field(init=False)
    kept: dict[str, Engine] = field(default_factory=dict)
    """Further engines by their settings; a test that ends or breaks one takes a `fresh` one instead."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.engine = self.fresh()

    def shared(self, **changes: Any) -> Engine:
        """An engine of these settings that tests share one after the other, with any weights."""
        key = json.dumps(changes, sort_keys=True)
        if key not in self.kept:
            self.kept[key] = self.fresh(**changes)
        return self.kept[key]

    def close(self) -> None:
        """End all engines but fresh ones."""
        for engine in (self.engine, *self.kept.values()):
            engine.close()

    def fresh(self, **changes: Any) -> Engine:
        """Another engine on the same model, with nothing loaded."""
        return self.make(self.base, **{"seed": 0, "max_model_len": self.room, "options": {}, **changes})


class ServedBench(Bench):
    """The same with vLLM over two devices; a start of its processes is slow, so nearly all share one."""

    steps_by_itself = True

    def shared(self, **changes: Any) -> Engine:
        """The one engine, with another `swap`."""
        engine: Any = self.engine
        engine._swap.mode = changes.get("swap", "drain")
        let_go(engine)  # a test before it may have failed
        return self.engine


SERVED_HERE = "RFT_TEST_SERVED_HERE"
"""Set where tests marked `served` run: vLLM's options, as JSON, by which the engine has two devices."""


def _engine_class(kind: str) -> Callable[..., Engine]:
    if kind == "vllm":
        pytest.importorskip("vllm")
        from explorers.engines.vllm_engine import VllmEngine

        return VllmEngine
    if kind == "served":
        pytest.importorskip("vllm")
        from tests.explorers.engines.served import served_engine

        return served_engine
    from explorers.engines.transformers_engine import TransformersEngine

    return TransformersEngine


SERVED = pytest.param(("served", True), id="served", marks=[pytest.mark.slow, pytest.mark.served])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that fork an engine's processes run where none was, in the child of `test_vllm_served.py`."""
    if SERVED_HERE not in os.environ:
        kept, served = [], []
        for item in items:
            (kept if item.get_closest_marker("served") is None else served).append(item)
        config.hook.pytest_deselected(items=served)
        items[:] = kept


@pytest.fixture(
    scope="session",
    params=[
        pytest.param((kind, tied), id=f"{kind}-{'tied' if tied else 'untied'}", marks=marks)
        for kind, marks in (("transformers", ()), ("vllm", pytest.mark.slow))
        for tied in (True, False)
    ]
    + [SERVED],
)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    kind, tied = request.param
    folder, make = tmp_path_factory.mktemp(kind), _engine_class(kind)
    served = kind == "served"
    bench = ServedBench(folder, tied, make=make, room=256) if served else Bench(folder, tied, make=make)
    yield bench
    bench.close()


_IN_PROCESS = [
    pytest.param(("transformers", True), id="transformers"),
    pytest.param(("vllm", True), id="vllm", marks=pytest.mark.slow),
]
ONE_MODEL = pytest.mark.parametrize("bench", [*_IN_PROCESS, SERVED], indirect=True)
"""For claims that have nothing to do with how the model is built."""

STEPPED_BY_US = pytest.mark.parametrize("bench", _IN_PROCESS, indirect=True)
"""For claims of engines in this process; `test_vllm_served.py` has those of the other kind."""


@pytest.fixture
def tied(tmp_path: Path) -> Published:
    return Published(tmp_path, tied=True)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A small tokenizer with the chat template of Qwen2.5, which has tools; no test changes it."""
    made = trained_tokenizer()
    made.chat_template = QWEN25
    return made


@pytest.fixture
def in_threads() -> Callable[..., list[Any]]:
    """One thread per argument, all at once; the results in order."""

    def run(function: Callable[[Any], Any], arguments: list[Any]) -> list[Any]:
        with ThreadPoolExecutor(len(arguments)) as pool:
            return list(pool.map(function, arguments))

    return run
