"""The page of the Python names, from their docstrings: `python -m docs.pages.python > docs/python.md`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence

import rft_data

_HEAD = """\
# In Python

Everything below is in `rft_data`. A name is loaded when it is first used, and none of them loads torch,
vLLM, TRL, Ray or Data-Juicer. Written by `python -m docs.pages.python` from the docstrings; a test keeps it
current.

```python
from pathlib import Path

import rft_data as rft

summary = rft.run_recipe(rft.load_recipe(Path("recipes/quickstart.yaml"), ["seed=1"]))

with rft.Buffer("runs/quickstart/buffer", read_only=True) as buffer:
    rates = rft.query(buffer, "select task_id, avg(reward) from experiences group by 1").to_pandas()
    rft.run_metrics(buffer, "quickstart").plot(y="trainer/reward")
    print(rft.lineage(buffer, 1234))  # a row's number or id
    rft.export(buffer, "out.parquet", format="sft")
```
"""

_GROUPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "Run a recipe": (
        "[recipe.md](recipe.md), [modes.md](modes.md)",
        ("load_recipe", "run_recipe", "Recipe"),
    ),
    "Open a buffer, bring rows in and out": (
        "[buffer.md](buffer.md), [formats.md](formats.md)",
        ("Buffer", "import_into", "export"),
    ),
    "Ask a buffer": (
        "[reading.md](reading.md)",
        ("query", "run_metrics", "index_text", "search_text", "embed", "similar", "lineage", "trained_on"),
    ),
    "Rows": (
        "[schema.md](schema.md)",
        ("Task", "TaskKey", "Experience", "experience_id_of", "PreferencePair", "Feedback", "GroupResult"),
    ),
    "Choose rows": ("[reading.md](reading.md#filters)", ("parse_text", "parse_filter", "EXPERIENCES")),
    "Errors": ("[exit_codes.md](exit_codes.md)", ("RftError", "RowError", "StalledError")),
    "Use a buffer of another process": ("[hub.md](hub.md)", ("HubClient", "HubServer")),
    "A reward, a workflow or an engine of your own": (
        "[explorers.md](explorers.md)",
        (
            "Reward",
            "Unscored",
            "UnscoredCause",
            "Trajectory",
            "Workflow",
            "RolloutContext",
            "Engine",
            "Sampling",
            "Completion",
            "WeightRef",
        ),
    ),
    "A task selector of your own": ("[selectors.md](selectors.md)", ("Selector", "TaskSelector")),
    "A sampler policy of your own": ("[sampler.md](sampler.md)", ("SamplerPolicy", "Candidate", "Moment")),
    "An algorithm of your own": ("[algorithms.md](algorithms.md)", ("Algorithm",)),
}

_CONSTANTS = {
    "EXPERIENCES": "The Arrow schema of the table `experiences`, for `parse_text` and `parse_filter`."
}
"""What is said of a name that has no docstring of its own."""

_TAIL = """
## Elsewhere

What needs a library that `import rft_data` does not load is imported from its own package.

| to write | import | page |
|---|---|---|
| an operator | `ops.base` (needs Data-Juicer) | [operators.md](operators.md) |
| a loss | `trainers.policy.losses` (needs torch) | [losses.md](losses.md) |
| a batch operator | `trainers.policy.batch_ops` (needs torch) | [ppo.md](ppo.md) |
| a conversation in a function | `explorers.conversations.recording.RecordingModel` | [extend.md](extend.md) |
| a filter of Python objects | `rft_data.core.filters` | [reading.md](reading.md#filters) |
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *(line for title in _GROUPS for line in _group(title))]).rstrip() + "\n" + _TAIL


def names() -> list[str]:
    """Every name on the page."""
    return [name for _, group in _GROUPS.values() for name in group]


def _group(title: str) -> Iterator[str]:
    more, group = _GROUPS[title]
    yield from (f"## {title}", "", f"See {more}.", "", "| name | what it is |", "|---|---|")
    for name in group:
        value = getattr(rft_data, name)
        about = " ".join((_CONSTANTS.get(name) or inspect.getdoc(value) or "").split("\n\n")[0].split())
        shown = f"{name}()" if inspect.isroutine(value) else name
        yield f"| `{shown}` | {about} |"
    yield ""


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
