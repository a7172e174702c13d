"""The training sets as TRL's own code reads them, loaded by `datasets`."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.formats import FORMATS, export, import_into
from rft_data.exchange.formats.preferences import explicit
from tests.rft_data.exchange.formats.conftest import jsonl
from tests.rft_data.exchange.formats.test_exporting import BOT, USER, rollout

pytestmark = pytest.mark.slow

ARGUMENTS = {"x": None, "y": 1}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": ARGUMENTS}}],
}
PARAMETERS = {"properties": {"y": {"type": "number"}}, "type": "object"}
TOOLS = [{"function": {"name": "f", "parameters": PARAMETERS}, "type": "function"}]
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments | tojson }}{% endif %}"
    "</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FILES = ("set.jsonl", "set.jsonl.zst", "set.parquet", "set")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, chat_template=TEMPLATE)


@pytest.fixture
def full(buffer: Buffer, tmp_path: Path) -> Buffer:
    """Rollouts in groups, a tool conversation, stored preferences and tasks."""
    buffer.append([rollout(group, m, float(m)) for group in ("a", "b") for m in range(2)])
    rows = [{"messages": [USER, CALL, {"role": "tool", "content": "1"}, BOT], "tools": TOOLS}]
    import_into(buffer, jsonl(tmp_path / "tools.jsonl", rows))
    pairs = [{"prompt": [USER], "chosen": [BOT], "rejected": [{**BOT, "content": "no"}], "score_chosen": 2}]
    import_into(buffer, jsonl(tmp_path / "pairs.jsonl", pairs))
    import_into(buffer, jsonl(tmp_path / "tasks.jsonl", [{"question": "1+1=", "answer": "2", "level": 3}]))
    return buffer


def load(path: Path, cache: Path) -> datasets.Dataset:
    if path.suffix == "":
        return datasets.load_from_disk(str(path))
    kind = "parquet" if path.suffix == ".parquet" else "json"
    return datasets.load_dataset(kind, data_files=str(path), split="train", cache_dir=str(cache))


def columns(name: str) -> set[str]:
    return {
        "sft": {"prompt", "completion"}, "sft-messages": {"messages", "tools"},
        "dpo": {"prompt", "chosen", "rejected", "score_chosen", "score_rejected"},
        "kto": {"prompt", "completion", "label"}, "grpo": {"prompt", "answer", "metadata"},
    }[name]  # fmt: skip


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", [name for name, made in FORMATS.items() if made.training])
def test_trl_takes_every_row_of_a_training_set(
    full: Buffer, tokenizer: Any, tmp_path: Path, name: str, file: str
) -> None:
    from trl.data_utils import is_conversational, maybe_apply_chat_template, maybe_extract_prompt

    report = export(full, tmp_path / file, format=name)
    loaded = load(tmp_path / file, tmp_path / "cache")
    assert loaded.num_rows == report.written > 0
    assert set(loaded.column_names) == columns(name)
    for row in loaded:
        assert is_conversational(row)
        assert maybe_extract_prompt(row) == row
        said = maybe_apply_chat_template(dict(row), tokenizer)
        texts = {
            key: value
            for key, value in said.items()
            if key in ("prompt", "completion", "chosen", "rejected", "text")
        }
        assert all(isinstance(text, str) and text for text in texts.values())


@pytest.mark.parametrize("file", ["set.parquet", "set"])
def test_tools_and_arguments_reach_the_template_as_they_were(
    full: Buffer, tokenizer: Any, tmp_path: Path, file: str
) -> None:
    from trl.data_utils import apply_chat_template

    export(full, tmp_path / file, format="sft-messages")
    row = next(row for row in load(tmp_path / file, tmp_path / "cache") if row["tools"])
    assert (row["messages"][1], row["tools"]) == (CALL, TOOLS)
    wanted = {"messages": [USER, CALL, {"role": "tool", "content": "1"}, BOT]}
    said = apply_chat_template(row, tokenizer, tools=row["tools"])["text"]
    assert said == apply_chat_template(wanted, tokenizer, tools=TOOLS)["text"]
    assert said.startswith('<tools>[{"function"')


def test_our_explicit_prompt_is_the_one_trl_extracts() -> None:
    from trl.data_utils import extract_prompt

    pairs: list[dict[str, Any]] = [
        {"chosen": [USER, BOT], "rejected": [USER, {**BOT, "content": "no"}]},
        {"chosen": [USER, BOT, USER, BOT], "rejected": [USER, BOT, USER, USER]},
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        {"chosen": "The sky is blue.", "rejected": "The sky isn't blue."},
    ]
    for pair in pairs:
        assert explicit(pair) == extract_prompt(pair)


def test_the_loading_lines_of_the_card_load_the_set(
    full: Buffer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for file in FILES:
        report = export(full, tmp_path / file, format="kto")
        code = Path(report.card).read_text().split("```python\n")[1].split("```")[0]
        scope: dict[str, Any] = {}
        exec(code, scope)  # noqa: S102
        assert scope["rows"].num_rows == report.written


def test_images_are_loaded_as_images(buffer: Buffer, tmp_path: Path) -> None:
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
    from trl.data_utils import prepare_multimodal_messages

    stream = io.BytesIO()
    Image.new("RGB", (2, 3), (9, 8, 7)).save(stream, "PNG")
    row = {
        "prompt": [[USER]],
        "completion": [[BOT]],
        "images": [[{"bytes": stream.getvalue(), "path": None}]],
    }
    pq.write_table(pa.table(row), tmp_path / "in.parquet")
    import_into(buffer, tmp_path / "in.parquet")
    for file in ("set.parquet", "set"):
        export(buffer, tmp_path / file, format="sft")
        loaded = load(tmp_path / file, tmp_path / "cache")[0]
        assert loaded["images"][0].size == (2, 3)
        assert prepare_multimodal_messages(loaded["prompt"], loaded["images"])[0]["content"][0][
            "image"
        ].getpixel((0, 0)) == (9, 8, 7)


def test_json_lines_written_by_datasets_itself_are_read(buffer: Buffer, tmp_path: Path) -> None:
    rows = {
        "messages": [[USER, BOT], [USER, CALL, {"role": "tool", "content": "1"}, BOT]],
        "tools": [None, json.dumps(TOOLS)],
    }
    datasets.Dataset.from_dict(rows, on_mixed_types="use_json").to_json(tmp_path / "rows.jsonl")
    assert import_into(buffer, tmp_path / "rows.jsonl").stored == 2
    assert json.loads(buffer.read("experiences", ["messages"]).column(0)[1].as_py())[1] == CALL
