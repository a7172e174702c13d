"""Run operators over stored experiences again: dry runs of a recipe, and readmission of rejected groups.

Nothing here explores or trains.
"""

from rft_data.run.rejudge.compare import Difference, Example
from rft_data.run.rejudge.dry_run import DryRun, Replay, dry_run
from rft_data.run.rejudge.readmit import Readmitted, check_not_running, readmit
from rft_data.run.rejudge.stored_verdicts import StoredVerdicts
from rft_data.run.rejudge.tally import OperatorTally, Reason

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
