"""Rules between keys of a recipe, checked on the parsed tree, so that other mistakes do not hide these."""

from __future__ import annotations

from collections.abc import Iterator

from rft_data.core.errors import RftError
from rft_data.core.words import Mode
from rft_data.recipe.algorithms import find_algorithm
from rft_data.recipe.preflight.devices import colocation_problems, device_problems, reward_device_problems
from rft_data.recipe.preflight.model_files import built_too_short
from rft_data.recipe.preflight.problem import Problem
from rft_data.recipe.preflight.served import served_problems
from rft_data.recipe.preflight.tree import Tree, entries, value
from rft_data.recipe.presets import OFFLINE, with_preset

_OWN_LENGTHS = ("vllm", "transformers", "routed")
"""Engines that hold a prompt and its completion in `max_model_len` tokens."""


def broken_rules(tree: Tree) -> Iterator[Problem]:
    """The rules that a recipe breaks."""
    yield from _tasksets(tree)
    yield from _lengths(tree)
    yield from built_too_short(tree)
    yield from _group_size(tree)
    yield from _unread(tree)
    yield from served_problems(tree)
    yield from device_problems(tree)
    yield from reward_device_problems(tree)
    yield from colocation_problems(tree)


def _tasksets(tree: Tree) -> Iterator[Problem]:
    first: dict[object, int] = {}
    for place, (loc, taskset) in enumerate(entries(tree, "tasks")):
        name = taskset.get("name")
        if isinstance(name, str) and first.setdefault(name, place) != place:
            yield Problem(
                (*loc, "name"),
                f"tasks.{first[name]} is called '{name}' too, and their tasks would be mixed; give each "
                "taskset a name of its own",
            )


def _lengths(tree: Tree) -> Iterator[Problem]:
    tokens = value(tree, "explorer", "max_tokens")
    engine = value(tree, "explorer", "engine")
    if not isinstance(engine, dict) or engine.get("use") not in _OWN_LENGTHS:
        return
    longest = engine.get("max_model_len", 256)
    if isinstance(tokens, int) and isinstance(longest, int) and tokens >= longest:
        written = "" if "max_model_len" in engine else " (its default)"
        yield Problem(
            ("explorer", "max_tokens"),
            f"completions of {tokens} tokens leave no room for a prompt: both together have at most "
            f"explorer.engine.max_model_len {longest}{written}; raise that, or lower max_tokens",
        )


def _group_size(tree: Tree) -> Iterator[Problem]:
    """A group that is too small for the algorithm of the last stage."""
    if tree.get("mode") not in (Mode.ONLINE, Mode.TRAIN):
        return
    stages = list(entries(tree, "stages"))
    algorithm = stages[-1][1].get("algorithm") if stages else None
    if not isinstance(algorithm, str) or algorithm in OFFLINE or ":" in algorithm:
        return
    try:
        least = find_algorithm(algorithm).least_group
    except RftError:
        return  # the check of the stage says so
    loc = ("explorer", "group_size") if tree["mode"] == Mode.ONLINE else ("group_size",)
    size = value(tree, *loc)
    if isinstance(size, int) and 1 <= size < least:
        yield Problem(
            loc,
            f"'group_size' is {size}; {algorithm} compares rollouts of one task: give at least {least}",
        )


def _unread(tree: Tree) -> Iterator[Problem]:
    """Options of TRL that nothing reads here."""
    after = with_preset(tree, explores=tree.get("mode") == Mode.ONLINE, check_only=True)
    resolved = dict(entries(after, "stages")) if isinstance(after, dict) else {}
    for loc, stage in entries(tree, "stages"):
        options = value(stage, "trl")
        if stage.get("algorithm") in OFFLINE or not isinstance(options, dict):
            continue
        if "temperature" in options:
            yield Problem(
                (*loc, "trl", "temperature"),
                "the trainer's is that of the rollouts, 'explorer.temperature'; remove it",
            )
        if "max_completion_length" not in options:
            continue
        full = resolved.get(loc, stage)
        if value(full, "trl", "loss_type") != "dr_grpo" or full.get("loss"):
            yield Problem(
                (*loc, "trl", "max_completion_length"),
                "nothing reads it: the explorers' longest completion is 'explorer.max_tokens', and only "
                "loss_type dr_grpo divides by a length; remove it",
            )
