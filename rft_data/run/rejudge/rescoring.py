"""Rescoring by a recipe: builds its rewards, scores rollouts, ends the processes of the rewards."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from explorers.limits import recipe_limits
from explorers.rewards.scoring import make_rewards
from rft_data.buffer import Buffer
from rft_data.reading.whole_groups import GroupRows
from rft_data.recipe.sections import ExplorerSection
from rft_data.run.programs import SandboxPlace, rewards_in_sandbox
from rft_data.run.rejudge.reward_version import Rescored, Version, rescore, version_name
from rft_data.run.rejudge.score_lines import ScoreLines


def rescored(
    buffer: Buffer,
    section: ExplorerSection,
    chosen: GroupRows,
    *,
    name: str | None,
    times: int,
    out: Path | None,
) -> Rescored:
    """Score groups by the rewards of a section.

    Args: name: of the version; None: a hash of the rewards. out: a file to write to, not the buffer.
    Raises: SandboxError, RecipeError and what building a reward raises.
    """
    version = Version(name or version_name([one.model_dump() for one in section.reward]), times)
    place = SandboxPlace()
    components = rewards_in_sandbox(section, place)
    lines = None if out is None else ScoreLines(out)
    limits = recipe_limits(section.limits, section.group_size)
    with closing(make_rewards(components, limits)) as rewards:
        found = rescore(
            buffer,
            rewards,
            chosen,
            version,
            keep=buffer.add_feedback if lines is None else lines.append,
            known=set() if lines is None else lines.known(version.key),
        )
    found.sandbox = "" if place.sandbox is None else str(place.sandbox)
    return found
