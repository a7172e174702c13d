"""The page of metric names is current, and knows every name in TRL's source."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import pytest

from docs.pages.metrics import NOT_OURS, OFFLINE, ONLINE, Name, page

ROOT = Path(__file__).parents[2]
_LOGGED = re.compile(r"""_metrics\[(?:mode|"train")\]\[f?"([^"]+)"\]""")


def logged(trainer: str) -> set[str]:
    """Names of metrics in a trainer's source; what it inserts into a name is `NAME`."""
    source = Path(str(distribution("trl").locate_file(f"trl/trainer/{trainer}_trainer.py"))).read_text()
    return {re.sub(r"\{[^}]*\}", "NAME", name) for name in _LOGGED.findall(source)}


def test_page_in_docs_is_the_one_the_tables_make() -> None:
    written = (ROOT / "docs" / "metrics.md").read_text()
    assert written == page(), "run `python -m docs.pages.metrics > docs/metrics.md`"


@pytest.mark.parametrize(
    ("trainer", "names"), [("grpo", ONLINE), *((name, OFFLINE) for name in ("sft", "dpo", "kto", "reward"))]
)
def test_every_name_of_trls_trainers_is_in_the_table(trainer: str, names: tuple[Name, ...]) -> None:
    found = logged(trainer)
    assert len(found) >= 4
    assert found <= {name.trl for name in names}
    assert all(name.ours in ("", NOT_OURS) for name in names), "a name that differs: say so in the page"
