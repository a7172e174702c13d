"""The process in which operators are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rft_data.run.build import prepare_process
from rft_data.run.child_answer import answer

if TYPE_CHECKING:
    from rft_data.run.trial.trial import Request


def work(request: Request) -> dict[str, object]:
    """Effects of the operators that a request names."""
    prepare_process()
    from rft_data.run.trial.trial import tried  # after the environment is set, which libraries read

    return tried(request)


if __name__ == "__main__":
    answer(work)
