"""All formats by name, and how the format of a file is found from its columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rft_data.core.errors import RecipeError
from rft_data.exchange.formats.datajuicer import DATA_JUICER, DATA_JUICER_MESSAGES
from rft_data.exchange.formats.openai import OPENAI
from rft_data.exchange.formats.preferences import PREFERENCE
from rft_data.exchange.formats.questions import GSM8K, PROBLEM_SOLUTION
from rft_data.exchange.formats.records import Format, RawRow
from rft_data.exchange.formats.rft import STORED
from rft_data.exchange.formats.sharegpt import SHAREGPT
from rft_data.exchange.formats.traces.formats import LOGS
from rft_data.exchange.formats.training import DPO, GRPO, KTO, SFT, SFT_MESSAGES
from rft_data.exchange.formats.trl import COMPLETION, LANGUAGE, PROMPT, UNPAIRED

FORMATS: Mapping[str, Format] = {
    made.name: made
    for made in (
        STORED, GSM8K, PROBLEM_SOLUTION, PROMPT, COMPLETION, LANGUAGE, PREFERENCE, UNPAIRED, OPENAI, SHAREGPT,
        DATA_JUICER, DATA_JUICER_MESSAGES, *LOGS, SFT, SFT_MESSAGES, DPO, KTO, GRPO,
    )
}  # fmt: skip


def detect(
    rows: Iterable[RawRow],
    source: str,
    formats: Mapping[str, Format] = FORMATS,
    mend: str = "say which with format= (--format)",
) -> Format:
    """The format that a file's first rows fit.

    A format fits when all columns of one of its shapes are there. Of two that fit, the one that needs more
    columns is taken, if it needs all columns of the other.
    Args: mend: what to do where several fit, or none.
    Raises: RecipeError naming the columns found and the shapes accepted when none or several fit.
    """
    columns = {name for row in rows for name, value in row.items() if value is not None}
    fits = {name: shape for name, made in formats.items() for shape in made.needs if shape <= columns}
    fits = {name: max((s for s in formats[name].needs if s <= columns), key=len) for name in fits}
    best = [name for name, shape in fits.items() if not any(shape < other for other in fits.values())]
    if len(best) == 1:
        return formats[best[0]]
    found = f"{source}: the columns are {', '.join(sorted(columns)) or 'none'}"
    if best:
        raise RecipeError(f"{found}; they fit {' and '.join(best)}; {mend}:\n{shapes(best, formats)}")
    raise RecipeError(f"{found}; no format fits them; {mend}. Accepted shapes:\n{shapes(formats, formats)}")


def shapes(names: Iterable[str], formats: Mapping[str, Format] = FORMATS) -> str:
    """The accepted shapes of the formats that can be read, one format a line."""
    readable = [formats[name] for name in names if formats[name].read is not None]
    return "\n".join(f"  {made.name}: {' | '.join(made.shapes)}" for made in readable)
