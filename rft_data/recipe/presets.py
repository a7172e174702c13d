"""Fills in the values of an algorithm's preset that a recipe does not set.

It works on the parsed tree, before the sections are checked; a tree that is malformed stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rft_data.core.errors import RftError
from rft_data.recipe.algorithms import Algorithm, find_algorithm

OFFLINE = ("sft", "dpo", "kto", "reward_model")
"""Stages that train on what is stored; every other `algorithm` is a policy-gradient preset."""
NO_RATIO = "policy_gradient"
"""The loss whose gradient is right on policy only: it reads no ratio to the policy that sampled."""
_OF_THE_STAGE = ("loss", "batch_ops", "kl", "critic", "off_policy")


def with_preset(tree: object, *, explores: bool, check_only: bool = False) -> object:
    """The recipe's tree and what the preset of its last stage adds.

    Args:
        explores: whether rollouts are made, so that operators, sampler and group size are chosen too.
        check_only: import no preset of the user's.
    """
    if not (isinstance(tree, dict) and isinstance(tree.get("stages"), list) and tree["stages"]):
        return tree
    *before, last = tree["stages"]
    if not isinstance(last, dict) or last.get("algorithm") in OFFLINE:
        return tree
    try:
        algorithm = find_algorithm(str(last.get("algorithm")), check_only=check_only)
    except RftError:  # the check of the stage reports what is wrong
        return _without_preset(tree) if explores else tree
    stage = _stage(last, algorithm, tree)
    if _replays(tree.get("sampler", algorithm.sampler)):
        stage = {"off_policy": _replay_correction(stage.get("loss")), **stage}
    out = {**tree, "stages": [*before, stage]}
    if explores:
        out["experience_ops"] = _operators(tree.get("experience_ops", []), algorithm)
        if isinstance(explorer := tree.get("explorer"), dict):
            out["explorer"] = {**_groups(algorithm), **explorer}
    if algorithm.sampler is not None:
        out.setdefault("sampler", algorithm.sampler)
    return out


def _without_preset(tree: Mapping[str, object]) -> Mapping[str, object]:
    """The tree with stand-ins for what only a preset gives, so that no second mistake is reported."""
    explorer = tree.get("explorer")
    filled = {"explorer": {"group_size": 2, **explorer}} if isinstance(explorer, dict) else {}
    return {"experience_ops": [], **tree, **filled}


def _replays(sampler: object) -> bool:
    return isinstance(sampler, Mapping) and sampler.get("use") == "replay"


def _replay_correction(loss: object) -> dict[str, object]:
    """How used groups are corrected for: by the loss's own ratio, else by truncated importance weights."""
    if isinstance(loss, Mapping) and loss.get("use") == NO_RATIO:
        return {"old_logprobs": "recompute", "importance": "token_truncated"}
    return {"old_logprobs": "rollout"}


def _groups(algorithm: Algorithm) -> dict[str, object]:
    greedy = {"greedy_member": True} if algorithm.greedy_member else {}
    return {"group_size": algorithm.group_size, **greedy}


def _operators(given: object, algorithm: Algorithm) -> object:
    """The recipe's operators and what it lacks of the preset's, filters before its advantage operator."""
    if not isinstance(given, list):
        return given
    known = {name for entry in given if isinstance(entry, dict) for name in entry}
    added = [entry for entry in algorithm.advantage if known.isdisjoint(entry)]
    own = next((place for place, entry in enumerate(given) if sets_advantage(entry)), None)
    if own is None:
        return [*given, *added]
    return [*given[:own], *(entry for entry in added if not sets_advantage(entry)), *given[own:]]


def written_place(written: object, operators: Sequence[Mapping[str, object]], place: int) -> int | None:
    """The index of a resolved list's operator in the list as it is written; None: the preset added it."""
    [name] = operators[place]
    before = sum(name in one for one in operators[:place])
    places = [i for i, one in enumerate(written) if name in one] if isinstance(written, list) else []
    return places[before] if before < len(places) else None


def sets_advantage(entry: object) -> bool:
    """Whether an entry of an operator list is an advantage operator, by its name."""
    return isinstance(entry, dict) and any("advantage" in str(name).lower() for name in entry)


def _stage(given: dict[str, object], algorithm: Algorithm, tree: dict[str, object]) -> dict[str, object]:
    preset = {name: getattr(algorithm, name) for name in _OF_THE_STAGE if getattr(algorithm, name)}
    if algorithm.critic is not None:
        preset["critic"] = algorithm.critic
    stage = {**preset, **given}
    options = given.get("trl", {})
    if isinstance(options, dict):
        of_loss = {} if stage.get("loss") else algorithm.trl_loss
        stage["trl"] = {**_length({**of_loss, **options}, tree), **of_loss, **algorithm.trl, **options}
    return stage


def _length(of_loss: Mapping[str, object], tree: Mapping[str, object]) -> dict[str, object]:
    """The constant that Dr. GRPO divides by: the explorers' longest completion."""
    explorer = tree.get("explorer")
    if of_loss.get("loss_type") != "dr_grpo" or not isinstance(explorer, dict):
        return {}
    return {"max_completion_length": explorer["max_tokens"]} if "max_tokens" in explorer else {}
