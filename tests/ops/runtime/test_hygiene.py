"""Importing Data-Juicer leaves the host process as it was; any import order registers all operators."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ops
from ops import OPERATOR_MODULES
from ops.runtime.hygiene import registry


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_importing_ops_and_its_pipeline_does_not_import_data_juicer():
    code = """
import sys, ops, ops.runtime.pipeline, ops.base, ops.runtime.hygiene
print(sorted({"data_juicer", "ray", "torch", "datasets", "loguru"} & sys.modules.keys()))
"""
    assert run_python(code).strip() == "[]"


HOST = """
import io, logging, multiprocessing, os, sys, tempfile
import loguru, multiprocess, PIL.ImageFile
sink, stream = io.StringIO(), io.StringIO()
loguru.logger.remove()
loguru.logger.add(sink, format="{message}", level="INFO")
sys.stdout = stream
def hook(*args):
    sys.__excepthook__(*args)
sys.excepthook = hook
os.environ.pop("RAY_CLIENT_MODE", None)
def state():
    root = logging.getLogger()
    return (sys.stdout is stream, sys.stderr is sys.__stderr__, sys.excepthook is hook, dict(os.environ),
        tempfile.tempdir, PIL.ImageFile.LOAD_TRUNCATED_IMAGES, list(root.handlers), root.level,
        multiprocessing.get_start_method(allow_none=True), multiprocess.get_start_method(allow_none=True))
before = state()
import pyarrow as pa
from ops.runtime.pipeline import OperatorPipeline
run = OperatorPipeline([{"text_length_filter": {"min_len": 3}}, {"document_minhash_deduplicator": {}},
    {"whitespace_normalization_mapper": {}}], name="task_ops", text_column="text")
assert run.run_tasks(pa.table({"text": ["one", "two", "two", "no"]})).kept.tolist()
assert state() == before, [pair for pair in zip(before, state()) if pair[0] != pair[1]]
assert "torch" not in sys.modules
loguru.logger.info("host speaks")
print(sink.getvalue(), end="", file=sys.__stdout__)
"""


@pytest.mark.slow
def test_host_logging_streams_and_start_method_are_undisturbed():
    assert run_python(HOST) == "host speaks\n"


FIRST = [
    "ops.lance.lancedb_write_mapper",
    "ops.register",
    "data_juicer.config",
    "data_juicer.ops",
]
"""A process each; the rule that makes any order work is tested for every module below."""
ORDERS = """
import importlib, os, sys
import datasets, lancedb, ray  # what takes seconds, and is neither Data-Juicer nor ours
assert not {"data_juicer", "ops"} & sys.modules.keys()
for first in sys.argv[1:]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, first
        continue
    importlib.import_module(first)
    import data_juicer.ops  # whose entry point, not we, imports ops.register
    from data_juicer.ops.base_op import OPERATORS
    from ops import OPERATOR_MODULES
    print(first, sorted(OPERATOR_MODULES.keys() - OPERATORS.modules.keys()), flush=True)
    os._exit(0)
"""


@pytest.mark.heavy
def test_any_import_order_registers_every_operator():
    assert run_python(ORDERS, *FIRST).splitlines() == [f"{first} []" for first in FIRST]


@pytest.mark.slow
def test_modules_of_ours_import_only_what_data_juicer_has_when_it_loads_them():
    """It imports them in the middle of its own import: `data_juicer.core` would be half there."""
    allowed = ("data_juicer.ops.base_op", "data_juicer.format.formatter", "data_juicer.utils")
    for path in Path(ops.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            found = [getattr(node, "module", None)] if isinstance(node, ast.ImportFrom) else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in found:
                assert not str(name).startswith("data_juicer") or name.startswith(allowed), (path.name, name)


def test_operators_are_registered_under_names_with_one_kind_word():
    kinds = ("mapper", "filter", "deduplicator", "selector", "grouper", "aggregator")
    for name, module in OPERATOR_MODULES.items():
        operator = registry().modules[name]
        assert operator.__module__ == module
        assert sum(kind in name for kind in kinds) == 1


def test_installs_are_forbidden_once_the_registry_is_loaded(monkeypatch):
    from data_juicer.utils.lazy_loader import LazyLoader

    def refuse(*_, **__):
        raise AssertionError("tried to start a process")

    monkeypatch.setattr(subprocess, "check_call", refuse)
    registry()
    missing = LazyLoader("no_such_package_of_ours")
    with pytest.raises(
        ImportError, match="'no_such_package_of_ours', which is not installed; nothing is installed"
    ):
        _ = missing.anything


@pytest.mark.parametrize("name", OPERATOR_MODULES)
def test_every_argument_has_a_default_which_data_juicers_parser_demands(name):
    from ops.runtime.specs import _arguments

    assert not _arguments(registry().modules[name])[1]
