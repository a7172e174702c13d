"""Operators over stored experiences again: what a recipe would do, and a second chance for the rejected.

Nothing here explores or trains.
"""

from rft_data.replay.compare import Difference, Example
from rft_data.replay.dry_run import DryRun, Replay, dry_run
from rft_data.replay.readmit import Readmitted, check_not_running, readmit
from rft_data.replay.stored import StoredVerdicts
from rft_data.replay.tally import OperatorTally, Reason

__all__ = [
    "Difference",
    "DryRun",
    "Example",
    "OperatorTally",
    "Readmitted",
    "Reason",
    "Replay",
    "StoredVerdicts",
    "check_not_running",
    "dry_run",
    "readmit",
]
