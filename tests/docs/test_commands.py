"""Every command of the pages is run in one small world, or its page says why not and what runs it instead."""

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
from tests.docs.blocks import PAGES, ROOT, blocks
from tests.docs.test_walks import FILES, rft

OF_THE_SHELL = {"cd", "export", "for", "done"}
"""Words that only prepare the next command."""
MARK = re.compile(r"^<!-- not run here: (.+?): (.+) -->$", re.MULTILINE)
"""The beginning of commands, and why they are not run here."""
NAMES = {
    "BUFFER": "runs/shop/buffer",
    "B": "runs/shop/buffer",
    "RECIPE": "shop.yaml",
    "RECIPE|FILE": "shop.yaml",
    "RUN": "shop",
    "RUN_DIR": "runs/shop",
    "R": "shop",
    "NAME": "reward_range_filter",
    "F": "sft",
    "SOURCE": "logs.jsonl",
    "1234": "1",
}
"""What stands for a name in capitals, or for a number."""
FOLDER = re.compile(r"^runs/(quickstart|a|mine|my-project)\b")
FEEDBACK = {"key": "reward", "value": 1, "author": "me"}


def written(page: Path) -> Iterator[list[str]]:
    """The commands of a page's blocks; of `a|b` both, and what is in brackets left out."""
    for block in blocks(page):
        if block.language != "console":
            continue
        for words in shell.commands(re.sub(r" \[[^\]]*\]", "", block.body)):
            if Path(words[0]).name == "rft":
                yield from (["rft", *one] for one in shell.alternatives(words[1:]))
            elif words[0] not in OF_THE_SHELL:
                yield words


def sorted_out(page: Path) -> tuple[list[list[str]], dict[str, list[str]]]:
    """The commands of a page that are run here, and by mark those that are not."""
    marks = [mark for mark, _ in MARK.findall(page.read_text())]
    here: list[list[str]] = []
    marked: dict[str, list[str]] = {mark: [] for mark in marks}
    for words in written(page):
        shown = " ".join(words)
        mark = next(
            (one for one in marks if f"{shown} ".startswith(f"{one} ") or shown.startswith(one)), None
        )
        if mark is None:
            here.append(words)
        else:
            marked[mark].append(shown)
    return here, marked


def _files() -> None:
    """What the pages name, in the working directory."""
    for name in ("mine.yaml", "recipe.yaml"):
        shutil.copy("shop.yaml", name)
    Path("recipes").symlink_to(ROOT / "recipes")
    with pa.output_stream("data.jsonl.zst", compression="zstd") as out:
        out.write(FILES["logs.jsonl"].encode())
    lines = (ROOT / "tests" / "data" / "litellm.jsonl").read_text().splitlines()
    Path("traces.json").write_text(json.dumps([json.loads(line) for line in lines]))
    pq.write_table(pa.table({"question": ["1 + 1?", "2 + 2?"], "answer": ["2", "4"]}), "my_tasks.parquet")
    exec(FILES["save.py"], {})  # noqa: S102 - the page's own file
    for mode in ("online", "explore", "train", "eval", "data"):
        (recipe,) = (
            one.body for one in blocks(ROOT / "docs" / f"{mode}.md") if one.body.startswith("recipe:")
        )
        Path(f"{mode}.yaml").write_text(recipe)


@pytest.fixture
def names(world: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What stands for each name, beside the finished run and what the pages name."""
    monkeypatch.setenv("RFT_HUB_TOKEN", "secret" * 6)
    _files()
    rft("buffer", "import", "runs/shop/buffer", "recipes/samples/courtesy_pairs.jsonl")
    rft("buffer", "tag", "runs/shop/buffer", "TAG")
    with Buffer("runs/shop/buffer", read_only=True) as buffer:
        row = str(buffer.read("experiences", ["experience_id"]).column(0)[0])
    Path("FILE.jsonl").write_text(json.dumps({"experience_id": row, **FEEDBACK}))
    return {**NAMES, "ID": row}


@pytest.mark.heavy
@pytest.mark.timeout(900)  # some eighty commands
def test_commands_of_the_pages_end_well(names: dict[str, str]) -> None:
    here = {" ".join(words): words for page in PAGES for words in sorted_out(page)[0]}
    strangers = [shown for shown, words in here.items() if words[0] != "rft"]
    assert strangers == [], "their page says why not: <!-- not run here: COMMAND: why -->"
    assert len(here) > 60
    failed = {}
    for shown, words in here.items():
        meant = [FOLDER.sub("runs/shop", names.get(word, word)) for word in words[1:]]
        done = CliRunner().invoke(app, meant)
        if done.exit_code:
            failed[shown] = done.output
    assert failed == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_here_is_written_there_and_has_tests_that_exist(page: Path) -> None:
    assert [mark for mark, found in sorted_out(page)[1].items() if not found] == []
    for mark, why in MARK.findall(page.read_text()):
        paths = re.findall(r"(?:tests|\.ci)/[\w/.]*\w", why)
        assert paths, f"{page.name}: name the tests that run '{mark}'"
        assert [path for path in paths if not (ROOT / path).exists()] == []
