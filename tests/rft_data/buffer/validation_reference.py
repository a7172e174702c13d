"""What the door should say of a row: a slow checker over plain Python values, written from the schema's
documentation and not from the door's code.
"""

import json
import math
from typing import Any

import pyarrow as pa

from rft_data.core.schema import INCOMING, is_json

LIMIT = 3_000
YEAR_1, YEAR_10000 = -62_135_596_800_000_000, 253_402_300_800_000_000
"""What Python's datetime can hold, in microseconds."""
SOURCES = {"rollout", "expert", "import", "eval", "probe"}


def faults_of(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row given as Arrow's Python values, strings as bytes."""
    wrong = [name for name in INCOMING.names if row[name] is None and not INCOMING.field(name).nullable]
    for field in INCOMING:
        value = row[field.name]
        if pa.types.is_string(field.type) and value is not None:
            opening = b"{" if field.name in ("reward_parts", "sampling", "metadata") else b"["
            good = good_json(value) and value.startswith(opening) if is_json(field) else True
            wrong += [field.name] * (not good_text(value) or not good)
    wrong += [n for n in ("experience_id", "run_id", "taskset", "task_id", "group_id") if row[n] == b""]
    wrong += ["source"] * (row["source"] not in {name.encode() for name in SOURCES})
    wrong += ["reward"] * (row["reward"] is not None and not math.isfinite(row["reward"]))
    wrong += ["payloads"] * (row["payloads"] is not None and None in row["payloads"])
    wrong += ["created_at"] * (row["created_at"] is not None and not YEAR_1 <= row["created_at"] < YEAR_10000)
    return [*wrong, *token_faults(row), *version_faults(row)]


def token_faults(row: dict[str, Any]) -> list[str]:
    ids, mask, logprobs = row["token_ids"], row["action_mask"], row["logprobs"]
    lists = {"action_mask": mask, "logprobs": logprobs, "teacher_logprobs": row["teacher_logprobs"]}
    wrong = []
    if needs_tokens(row):
        wrong += [name for name in ("token_ids", "action_mask", "logprobs") if row[name] is None]
    wrong += ["action_mask"] * (ids is not None and mask is None)
    for name, values in lists.items():
        wrong += [name] * (values is not None and (ids is None or len(values) != len(ids)))
    wrong += ["token_ids"] * any(i is None or i < 0 for i in ids or ())
    wrong += ["action_mask"] * any(m not in (0, 1) for m in mask or ())
    for name in ("logprobs", "teacher_logprobs"):
        wrong += [name] * any(v is None or not math.isfinite(v) for v in row[name] or ())
    prompt = row["prompt_length"] or 0
    wrong += ["prompt_length"] * (prompt < 0 or (ids is not None and prompt > len(ids)))
    return wrong


def needs_tokens(row: dict[str, Any]) -> bool:
    """Whether it is a rollout of weights; what an endpoint sampled has no tokens."""
    endpoint = row["token_ids"] is None and b'"endpoint":' in (row["sampling"] or b"")
    return row["source"] == b"rollout" and not endpoint


def version_faults(row: dict[str, Any]) -> list[str]:
    low, high = row["version_min"], row["version_max"]
    wrong = ["version_min"] * (needs_tokens(row) and low is None)
    wrong += ["version_max"] * ((low is None) != (high is None))
    wrong += ["version_max"] * (low is not None and high is not None and low > high)
    total = len(row["token_ids"] or ())
    for span in row["version_spans"] or ():
        whole = span is not None and None not in span.values()
        wrong += ["version_spans"] * (not whole or not 0 <= span["start"] < span["end"] <= total)
    return wrong


def good_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return len(value) <= LIMIT


def good_json(value: bytes) -> bool:
    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(text)
        return number

    try:
        parsed = json.loads(value, parse_constant=finite, parse_float=finite)
        json.dumps(parsed, ensure_ascii=False).encode()
    except ValueError:
        return False
    return value.count(b"[") < 200  # nested deeper is refused


def plain(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values: strings as bytes, valid or not, and times in microseconds."""
    columns = {field.name: table.column(field.name) for field in INCOMING}
    for name, values in columns.items():
        if pa.types.is_string(values.type):
            columns[name] = values.cast(pa.binary())
    columns["created_at"] = columns["created_at"].cast(pa.int64())
    lists = {name: values.to_pylist() for name, values in columns.items()}
    return [{name: values[i] for name, values in lists.items()} for i in range(table.num_rows)]
