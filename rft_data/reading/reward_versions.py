"""Which version of the reward a run trained on: the stored one, or feedback that its operators read."""

from __future__ import annotations

import json

from rft_data.core.reader import BufferReader


def reward_version(buffer: BufferReader, run_id: str) -> str:
    """Feedback key of the rewards of a run, or of whoever trained on its groups; empty: the stored ones."""
    rows = buffer.read("runs", ["run_id", "recipe"]).to_pylist()
    recipes = [(row["run_id"], json.loads(row["recipe"])) for row in rows]
    mine = [recipe for name, recipe in recipes if recipe.get("explored_by", name) == run_id]
    operators = mine[-1].get("experience_ops") or [] if mine else []
    joins = [one["feedback_mapper"] or {} for one in operators if "feedback_mapper" in one]
    found = [str(args.get("key")) for args in joins if args.get("replace") and args.get("into") != "stats"]
    return found[-1] if found else ""
