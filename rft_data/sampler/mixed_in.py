"""Groups that the sampler policy `mix` adds to a run's own: those of other runs, and of the run's experts."""

from __future__ import annotations

from collections.abc import Mapping

from rft_data.sampler.mix import OWN

EXPERTS = "experts"
"""Name of the part of `mix` that holds the run's experts."""


def experts_run_id(run_id: str) -> str:
    """The run id under which a run's expert groups are written."""
    return f"{run_id}.experts"


def experts_prefix(run_id: str) -> str:
    """How the ids of a run's expert groups begin."""
    return f"{run_id}/expert-"


def mixed_in(run_id: str, use: str, args: Mapping[str, object]) -> list[str]:
    """Run ids of the groups that a run's sampler may lease beside its own, by its section in the recipe."""
    parts = args.get("parts") if use == "mix" else None
    if not isinstance(parts, Mapping):
        return []
    other = {str(name).partition("/")[0] for name in parts} - {OWN, EXPERTS}
    return sorted(other | ({experts_run_id(run_id)} if EXPERTS in parts else set()))
