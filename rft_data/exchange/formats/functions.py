"""The rows that a function of the user's returns or yields, as a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rft_data.core.errors import RecipeError, RowError
from rft_data.core.lookup import load
from rft_data.exchange.formats.inputs import Source
from rft_data.exchange.formats.jsonlines import Found


def function_source(use: str, args: Mapping[str, object]) -> Source:
    """Open a function by its import path; it is called when the first row is read.

    Its rows raise: UnknownComponentError if there is none; RecipeError where it fails; RowError for a row
    that is no map.
    """
    return Source(use, use.rpartition(":")[2], _rows(use, args))


def _rows(use: str, args: Mapping[str, object]) -> Iterator[Found]:
    function = load(use, "task source")
    number = 0
    try:
        for number, row in enumerate(function(**args), start=1):
            if not isinstance(row, Mapping):
                raise RowError(f"{use}: row {number} is a {type(row).__name__}; wanted a map.")
            yield Found(f"{use}, row {number}", row)
    except RowError:
        raise
    except Exception as err:  # the user's own code
        raise RecipeError(
            f"{use}: it failed after row {number} ({type(err).__name__}: {err}); mend the function, "
            f"or the arguments {sorted(args)} that it was called with."
        ) from err
