"""Judge stored experiences again: dry runs of a recipe's operators, readmission of groups, other rewards.

Nothing here explores or trains.
"""

from rft_data.run.rejudge.compare import Difference, Example
from rft_data.run.rejudge.dry_run import DryRun, Replay, dry_run, groups_per_batch
from rft_data.run.rejudge.readmit import JudgedAgain, Readmitted, check_not_running, judged_again, readmit
from rft_data.run.rejudge.rejected import Chosen
from rft_data.run.rejudge.reward_version import Rescored, Version, in_shard, rescore, version_name
from rft_data.run.rejudge.score_lines import ScoreLines
from rft_data.run.rejudge.stored_verdicts import StoredVerdicts
from rft_data.run.rejudge.tally import OperatorTally, Reason

__all__ = [
    "Chosen",
    "Difference",
    "DryRun",
    "Example",
    "JudgedAgain",
    "OperatorTally",
    "Readmitted",
    "Reason",
    "Replay",
    "Rescored",
    "ScoreLines",
    "StoredVerdicts",
    "Version",
    "check_not_running",
    "dry_run",
    "groups_per_batch",
    "in_shard",
    "judged_again",
    "readmit",
    "rescore",
    "version_name",
]
