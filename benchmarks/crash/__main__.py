"""`python -m benchmarks.crash --kills N | --cuts N [--seed S]`."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import lance  # noqa: F401 - imported before the first fork, used only behind it
import lancedb  # noqa: F401

from benchmarks.crash.driver import Driver, Report
from benchmarks.crash.mutations import MUTATIONS
from benchmarks.crash.power import PowerReport, cut_power


def main() -> int:
    """Run, print the report, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=0, help="cut the power so often, and kill nothing")
    parser.add_argument(
        "--forget",
        action="append",
        default=[],
        metavar="PATTERN",
        help="with --cuts: cut again as if paths that match were never synced, which must be seen",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the buffers are put; default: a temporary folder")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), default="", help="break it on purpose")
    options = parser.parse_args()
    if options.cuts and options.mutation:
        parser.error("--mutation breaks what is killed; with --cuts nothing is")
    warnings.filterwarnings("ignore", message=".*fork.*")
    logging.getLogger("rft_data").setLevel(logging.ERROR)  # a checkpoint cut short is what we came for
    folder = Path(tempfile.mkdtemp(prefix="crash-", dir=options.folder))
    report: Report | PowerReport
    if options.cuts:
        report = cut_power(folder, options.cuts, options.seed, options.forget)
    else:
        report = Driver(options.kills, options.seed, folder, options.mutation).run()
    if report.sound:
        shutil.rmtree(folder)
    else:
        print(f"what is left of it: {folder}", file=sys.stderr)
    print(report.as_json())
    return 0 if report.sound else 1


if __name__ == "__main__":
    sys.exit(main())
