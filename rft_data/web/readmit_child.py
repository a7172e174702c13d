"""The process in which groups are readmitted for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rft_data.core.words import HubRole
from rft_data.run.build import prepare_process
from rft_data.run.child_answer import answer


def work(request: Any) -> dict[str, object]:
    """Groups that were readmitted. Args: request: `run_dir`, and what `readmission.readmitted` takes."""
    prepare_process()
    from rft_data.buffer import Buffer  # after the environment is set, which libraries read
    from rft_data.run.hub_file import offered_hub
    from rft_data.run.trial.readmission import readmitted
    from rft_data.web.writing import write

    run_dir = Path(request.pop("run_dir"))
    location = request["trial"]["location"]
    beside = offered_hub(run_dir, location, HubRole.CURATOR) is not None
    with Buffer(location, read_only=True) as buffer:
        return readmitted(
            {"trial": request["trial"], "beside": beside},
            lambda act: write(buffer, run_dir, lambda writer: act(writer.store), HubRole.CURATOR),
        )


if __name__ == "__main__":
    answer(work)
