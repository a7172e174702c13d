"""Lists of operators in a recipe's tree: a bare name stands for an operator without arguments."""

from __future__ import annotations

_LISTS = ("task_ops", "experience_ops")


def name_operators(tree: dict[str, object]) -> None:
    """Give every operator that is a bare name the form `{name: {}}`, in place."""
    lists = [tree.get(key) for key in _LISTS]
    upkeep = tree.get("task_upkeep")
    lists.append(upkeep.get("ops") if isinstance(upkeep, dict) else None)
    stages = tree.get("stages")
    for stage in stages if isinstance(stages, list) else []:
        lists.append(stage.get("batch_ops") if isinstance(stage, dict) else None)
    for entries in lists:
        for place, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, str):
                entries[place] = {entry: {}}  # type: ignore[index]
