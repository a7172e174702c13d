"""Every command of the pages is run in one small world, or another test that runs it is named here."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from tests.docs import shell
from tests.docs.blocks import ROOT, Block, checked
from tests.docs.test_walks import FILES, rft

pytestmark = pytest.mark.slow

ELSEWHERE = {
    r"rft (run|train|eval) ": "tests/rft_data/run tests/recipes",
    r"rft resume |rft stop ": "tests/rft_data/run/test_control.py",
    r"rft status .* --watch": "tests/rft_data/cli/test_progress.py",
    r"rft view ": "tests/rft_data/web",
    r"rft serve ": "tests/rft_data/run/test_serve.py",
    r"rft hub ": "tests/rft_data/cli/test_hub.py",
    r"rft data feedback add --buffer hub:": "tests/rft_data/run/test_hub_file.py",
    r"rft data annotate ": "tests/docs/test_walks.py",
    r"rft data run ": "tests/rft_data/run/test_curation.py",
    r"rft reward-server ": "tests/explorers/rewards",
    r"rft debug template Qwen/": "tests/rft_data/run/test_debug.py",
    r"rft doctor": "tests/rft_data/run/test_doctor.py",
    r"rft init |rft recipe copy |.* extend.yaml": "tests/docs/test_extend_page.py tests/rft_data/recipe",
    r"rft recipe new ": "tests/rft_data/cli/test_cli_recipe.py",
    r"rft buffer branch ": "tests/rft_data/cli/test_cli_read.py",
}
"""Commands that are not run here: they last, ask a person, or need what is not there. And where they are."""

NAMES = {
    "BUFFER": "runs/shop/buffer",
    "B": "runs/shop/buffer",
    "RECIPE": "shop.yaml",
    "RECIPE|FILE": "shop.yaml",
    "RUN": "shop",
    "R": "shop",
    "NAME": "reward_range_filter",
    "F": "sft",
    "SOURCE": "logs.jsonl",
    "1234": "1",
}
"""What stands for a name in capitals, or for a number."""
FOLDER = re.compile(r"^runs/(quickstart|a|mine|my-project)\b")
FEEDBACK = {"key": "reward", "value": 1, "author": "me"}


def _written(block: Block) -> Iterator[list[str]]:
    """The commands of a block; of `a|b` both, and what is in brackets left out."""
    for words in shell.commands(re.sub(r" \[[^\]]*\]", "", block.body)):
        if Path(words[0]).name == "rft":
            yield from shell.alternatives(words[1:])


COMMANDS = {" ".join(["rft", *words]): words for block in checked("console") for words in _written(block)}


def _files() -> None:
    """What the pages name, in the working directory."""
    for name, text in FILES.items():
        Path(name).write_text(text)
    for name in ("mine.yaml", "recipe.yaml"):
        shutil.copy("shop.yaml", name)
    Path("recipes").symlink_to(ROOT / "recipes")
    with pa.output_stream("data.jsonl.zst", compression="zstd") as out:
        out.write(FILES["logs.jsonl"].encode())
    lines = (ROOT / "tests" / "data" / "litellm.jsonl").read_text().splitlines()
    Path("traces.json").write_text(json.dumps([json.loads(line) for line in lines]))
    pq.write_table(pa.table({"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"]}), "my_tasks.parquet")
    exec(FILES["save.py"], {})  # noqa: S102 - the page's own file


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A finished run with what the pages name beside it; what stands for each name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RFT_HUB_TOKEN", "secret" * 6)
    _files()
    rft("run", "shop.yaml", "stages.1.steps=1")
    rft("buffer", "import", "runs/shop/buffer", "recipes/samples/courtesy_pairs.jsonl")
    rft("buffer", "tag", "runs/shop/buffer", "TAG")
    with Buffer("runs/shop/buffer", read_only=True) as buffer:
        row = str(buffer.read("experiences", ["experience_id"]).column(0)[0])
    Path("FILE.jsonl").write_text(json.dumps({"experience_id": row, **FEEDBACK}))
    return {**NAMES, "ID": row}


def test_commands_of_the_pages_end_well(names: dict[str, str]) -> None:
    ours = {
        shown: words
        for shown, words in COMMANDS.items()
        if not any(re.match(one, shown) for one in ELSEWHERE)
    }
    assert len(ours) > 50
    failed = {}
    for shown, words in ours.items():
        meant = [FOLDER.sub("runs/shop", names.get(word, word)) for word in words]
        done = CliRunner().invoke(app, meant)
        if done.exit_code:
            failed[shown] = done.output
    assert failed == {}


def test_what_is_not_run_here_is_written_somewhere_and_has_its_tests() -> None:
    for pattern, tests in ELSEWHERE.items():
        assert any(re.match(pattern, shown) for shown in COMMANDS), f"no page has '{pattern}'"
        assert all((ROOT / path).exists() for path in tests.split()), tests
