"""The process in which recipes of the page's form are read and checked."""

from __future__ import annotations

from typing import Any

from rft_data.run.asked import answer


def work(request: Any) -> dict[str, Any]:
    """The form as it is shown again."""
    from rft_data.recipe.form.desk import worked_on  # after the memory is limited

    return dict(worked_on(request))


if __name__ == "__main__":
    answer(work)
