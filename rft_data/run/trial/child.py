"""The process in which operators are tried."""

from __future__ import annotations

from typing import Any

from rft_data.run.asked import answer
from rft_data.run.build import prepare_process


def work(request: Any) -> dict[str, Any]:
    """What the operators would do."""
    prepare_process()
    from rft_data.run.trial.trial import tried  # after the environment is set, which libraries read

    return tried(request)


if __name__ == "__main__":
    answer(work)
