"""Process environment for every test: set before torch, vllm or data_juicer is imported."""

import gc
import os
import shutil
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

from rft_data.core.collector import collector_paused
from rft_data.core.lookup import OWN_CODE
from rft_data.run.build import prepare_process
from tests.order import pytest_collection_modifyitems  # noqa: F401
from tests.outside import trust_nobody
from tests.skips import pytest_terminal_summary  # noqa: F401
from tests.template import use_template, variables_read

os.environ["HF_HUB_OFFLINE"] = "1"
# Of tests side by side each keeps to one core, also in its child processes: two OpenMP threads that wait for
# each other on busy cores made one optimizer step of a tiny model take 70 ms instead of 0.4 ms.
os.environ["OMP_THREAD_LIMIT"] = "1"
# Ray gives its workers way to every other process (nice 15); beside other tests a run would stand still.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - so Ray names it
prepare_process()
# Thousands of small tables are written and removed: in memory, if it has room for them (a run needs 1 GiB).
MEMORY = Path("/dev/shm")  # noqa: S108
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
# The same examples every time; `make examples` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("random", deadline=None, max_examples=300)
settings.load_profile("same")
trust_nobody()
# The command's options are read from hundreds of functions: once for a process, not for each call of a test.
typer.testing._get_command = cache(typer.testing._get_command)
# Packages that only some tests use, and that the tested set does without (requirements/apart.txt).
sys.path.append(str(Path(sys.prefix) / "apart"))
FEW_OBJECTS = 50_000
"""So many are looked through in 10 ms."""
REAL_FREEZE, REAL_UNFREEZE, REAL_COUNT = gc.freeze, gc.unfreeze, gc.get_freeze_count
# vLLM freezes every object when an engine starts and unfreezes every object when one ends. Here only
# `frozen_imports` freezes; else each engine, and each `train()` after it, looks through all libraries: 1 s.
gc.freeze = gc.unfreeze = lambda: None
# It walks through all that is frozen, 0.1 s, to be asked by each engine whether there is anything.
gc.get_freeze_count = lambda: 1
# Compiled modules are kept: pytest needs 7 s in each of its workers to compile all tests again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
use_template()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the tests, and with them every library, without collecting garbage."""
    with collector_paused():
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> None:
    """Each `train()` and each end of a vLLM engine collects garbage; the libraries alone would cost it 1 s.

    What a library adds later is frozen before the next module.
    """
    if len(gc.get_objects()) > FEW_OBJECTS:
        gc.collect()
        REAL_FREEZE()


@pytest.fixture(scope="module", autouse=True)
def own_code() -> Generator[None]:
    """Recipes of one module make their folders importable; the next module is without them."""
    folders, places = os.environ.get(OWN_CODE, ""), [*sys.path]
    yield
    os.environ[OWN_CODE], sys.path[:] = folders, places


@pytest.fixture(scope="module", autouse=True)
def own_variables() -> Generator[None]:
    """What a library sets for its own children is gone after a module (vLLM: LD_PRELOAD).

    Else every child of a later test would import all libraries: it would not suit the template.
    """
    before = variables_read(os.environ)
    yield
    for name in variables_read(os.environ):
        del os.environ[name]
    os.environ.update(before)


@pytest.fixture
def own_collector(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Python's collector as other processes have it: for tests of what an engine does to it."""
    monkeypatch.setattr(gc, "freeze", REAL_FREEZE)
    monkeypatch.setattr(gc, "unfreeze", REAL_UNFREEZE)
    monkeypatch.setattr(gc, "get_freeze_count", REAL_COUNT)
    yield
    REAL_FREEZE()
