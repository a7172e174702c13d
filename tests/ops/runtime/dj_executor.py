"""Run in a process of its own by test_equivalence: operator lists through Data-Juicer's default executor.

`python dj_executor.py FOLDER`: reads lists.json and TABLE.arrow there, writes NAME.arrow for each list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa

CONFIG = """
project_name: equivalence
dataset_path: {folder}/empty.jsonl
export_path: {folder}/out.jsonl
work_dir: {folder}
np: 1
use_cache: false
skip_op_error: false
open_monitor: false
process: {process}
"""


def read(path: Path) -> pa.Table:
    """A table written by the test."""
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


def main() -> None:
    """Run every list over its table."""
    from data_juicer.config import init_configs
    from data_juicer.core.data import NestedDataset
    from data_juicer.core.executor import DefaultExecutor
    from datasets import Dataset
    from datasets.table import InMemoryTable

    folder = Path(sys.argv[1])
    (folder / "empty.jsonl").write_text('{"text": ""}\n')
    for name, (kind, operators) in json.loads((folder / "lists.json").read_text()).items():
        config = folder / "config.yaml"
        config.write_text(CONFIG.format(folder=folder, process=json.dumps(operators)))
        executor = DefaultExecutor(init_configs(["--config", str(config)]))
        dataset = NestedDataset(Dataset(InMemoryTable(read(folder / f"{kind}.arrow"))))
        out = executor.run(dataset, skip_export=True).with_format("arrow")[:]
        with (
            pa.OSFile(str(folder / f"{name}.out"), "wb") as file,
            pa.ipc.new_file(file, out.schema) as writer,
        ):
            writer.write_table(out)


if __name__ == "__main__":
    main()
