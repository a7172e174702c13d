"""Measurements of the operators that need a process of their own: Data-Juicer's executor, memory, imports.

`python -m benchmarks.ops_children NAME JSON FILE` writes its figures to FILE as JSON; the functions start
that process. Data-Juicer's executor takes over stdout and the logging of the process it is in.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

BATCH = 512

Operators = Sequence[Mapping[str, Mapping[str, Any]]]

_CONFIG = """
project_name: benchmark
dataset_path: {folder}/empty.jsonl
export_path: {folder}/out.jsonl
work_dir: {folder}
text_keys: completion_text
np: 1
use_cache: false
skip_op_error: false
open_monitor: false
process: {process}
"""


def executor_seconds(
    rows: Path, lists: Mapping[str, Operators], batch: int, batches: int
) -> dict[str, float]:
    """By name of the list: the shortest run of Data-Juicer's DefaultExecutor over one batch of `rows`."""
    return _in_process("executor", rows=str(rows), lists=lists, batch=batch, batches=batches)


def peak_memory(rows: Path, operators: Operators) -> dict[str, float]:
    """Peak memory of a pipeline over all of `rows`, the rows included, and the rows' own bytes."""
    return _in_process("memory", rows=str(rows), operators=operators)


def start_up(operators: Operators) -> dict[str, float]:
    """Seconds to import the adapter, to import Data-Juicer through it, and to build a pipeline."""
    return _in_process("imports", operators=operators)


def near_duplicates(stored: int, rows: int) -> dict[str, float]:
    """Speed and recall of the near-duplicate operator over the newest `rows`, against `stored` rows."""
    return _in_process("near_dup", stored=stored, rows=rows)


def write_rows(table: pa.Table, path: Path) -> None:
    """Rows for the children."""
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)


def _read(path: str) -> pa.Table:
    with pa.OSFile(path) as file:
        return pa.ipc.open_file(file).read_all()


def _in_process(name: str, **given: Any) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "benchmarks.ops_children", name, json.dumps(given), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603 - this file
        if done.returncode:
            raise RuntimeError(f"measurement '{name}' failed:\n{done.stderr[-3000:]}")
        figures: dict[str, float] = json.loads(answer.read_text())
        return figures


def _executor(rows: str, lists: dict[str, Operators], batch: int, batches: int) -> dict[str, float]:
    from data_juicer.config import init_configs
    from data_juicer.core.data import NestedDataset
    from data_juicer.core.executor import DefaultExecutor
    from datasets import Dataset
    from datasets.table import InMemoryTable

    table = _read(rows)
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "empty.jsonl").write_text('{"completion_text": ""}\n')
        for name, operators in lists.items():
            config = Path(folder) / "config.yaml"
            config.write_text(_CONFIG.format(folder=folder, process=json.dumps(operators)))
            executor = DefaultExecutor(init_configs(["--config", str(config)]))
            times = []
            for number in range(batches):
                part = table.slice(number * batch % table.num_rows, batch)
                dataset = NestedDataset(Dataset(InMemoryTable(part)))
                began = time.perf_counter()
                executor.run(dataset, skip_export=True)
                times.append(time.perf_counter() - began)
            seconds[name] = min(times)
    return seconds


def _memory(rows: str, operators: Operators) -> dict[str, float]:
    from ops.runtime.pipeline import OperatorPipeline

    run = OperatorPipeline(operators, name="benchmark")
    run.run_tasks(_read(rows).slice(0, 64))  # what is loaded when first used is not the batch's
    pa.default_memory_pool().release_unused()
    before = _status_bytes("VmRSS")
    table = _read(rows)
    Path("/proc/self/clear_refs").write_text("5")
    run.run_tasks(table)
    return {"peak_bytes": _status_bytes("VmHWM") - before, "batch_bytes": table.nbytes}


def _status_bytes(what: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(what)).split()[1]) * 1024


def _near_dup(stored: int, rows: int) -> dict[str, float]:
    from benchmarks.ops_near_dup import measure

    return measure(stored, rows)


def _imports(operators: Operators) -> dict[str, float]:
    began = time.perf_counter()
    from ops.runtime.hygiene import registry
    from ops.runtime.pipeline import OperatorPipeline

    adapter = time.perf_counter()
    registry()
    imported = time.perf_counter()
    OperatorPipeline(operators, name="benchmark")
    built = time.perf_counter()
    return {
        "import_adapter_s": adapter - began,
        "import_data_juicer_s": imported - adapter,
        "build_pipeline_ms": (built - imported) * 1e3,
    }


def main() -> None:
    """Run one measurement and write its figures."""
    name, given, answer = sys.argv[1:4]
    measure = {"executor": _executor, "memory": _memory, "imports": _imports, "near_dup": _near_dup}[name]
    Path(answer).write_text(json.dumps(measure(**json.loads(given))))


if __name__ == "__main__":
    main()
