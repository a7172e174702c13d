"""`reward_shaping_mapper`: a weighted combination of rewards, their parts and what operators measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.advantages.column import standardised
from ops.base import GROUP_KEY, ArrowMapper, floats
from ops.grouping import Groups
from ops.rewards.effective import with_shaped_reward
from rft_data.core.codec import one_array
from rft_data.core.errors import OperatorError

Array = npt.NDArray[np.float64]
Normalize = Literal["none", "group"]


@OPERATORS.register_module("reward_shaping_mapper")
class RewardShapingMapper(ArrowMapper, Pipeline):
    """Writes `shaped_reward` = clip(sum of weight * term).

    A term is a number column (`reward`, or what an operator before wrote, such as `pass_rate`) or, with
    a slash, an entry of a JSON or struct column (`reward_parts/format`, `__dj__stats__/text_len`).
    normalize="group" takes (x - mean) / (std + 1e-4) of each term over its group first, so that no term
    outweighs another (GDPO, arXiv:2601.05242); a group of one, or of equal values, then has 0.0. clip is
    applied to the sum. A row without a `reward` gets a null; one with a reward must have every term, or
    a ValueError names the missing one (the pipeline quarantines the row's group). Raises ValueError for
    a term that is not finite, and OperatorError where a `shaped_reward` is set already but is no term: what
    an earlier operator added or subtracted would be lost (put this one first, or weigh `shaped_reward`).
    """

    group_key = GROUP_KEY

    def __init__(
        self,
        weights: dict[str, float] | None = None,
        normalize: Normalize = "none",
        clip: tuple[float, float] | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        """weights: term to weight; clip: smallest and largest shaped reward."""
        super().__init__(*args, **kwargs)
        if not weights or not all(np.isfinite(weight) for weight in weights.values()):
            raise ValueError(f"weights is {weights}; wanted at least one term, with finite weights")
        if normalize not in get_args(Normalize):
            raise ValueError(f"normalize is {normalize!r}; wanted {' or '.join(get_args(Normalize))}")
        if clip is not None and not (len(clip) == 2 and clip[0] < clip[1]):
            raise ValueError(f"clip is {clip}; wanted [smallest, largest]")
        self.weights = dict(weights)
        self.normalize = normalize
        self.clip = clip
        columns = (GROUP_KEY, "reward", *(term.split("/")[0] for term in weights))
        self.required_columns = tuple(dict.fromkeys(columns))  # type: ignore[misc]  # of this list's terms
        self.optional_columns = ("shaped_reward",)  # type: ignore[misc]

    def process_table(self, table: pa.Table) -> pa.Table:
        """Combine the terms, in fp64."""
        unscored = np.isnan(floats(table, "reward"))
        self._check_nothing_lost(table)
        groups = Groups.of(table, GROUP_KEY)
        parts: dict[str, Mapping[str, Array]] = {}
        total = np.zeros(table.num_rows)
        for term, weight in self.weights.items():
            values = _term(table, term, parts)
            missing = np.isnan(values) & ~unscored
            if missing.any():
                raise ValueError(f"{missing.sum()} of {len(missing)} rows have a reward but no '{term}'")
            values = np.where(unscored, np.nan, values)
            if self.normalize == "group":
                values = standardised(values, groups, scaled=True, eps=1e-4)
            total += weight * values
        if self.clip is not None:
            total = np.clip(total, *self.clip)
        return with_shaped_reward(table, total)

    def _check_nothing_lost(self, table: pa.Table) -> None:
        if "shaped_reward" in self.weights or "shaped_reward" not in table.column_names:
            return
        if table["shaped_reward"].null_count < table.num_rows:
            raise OperatorError(
                "operator 'reward_shaping_mapper' would overwrite the `shaped_reward` of an operator before "
                f"it, which is none of its terms {sorted(self.weights)}; put it before that one, or give "
                "`shaped_reward: 1.0` a place in its weights instead of `reward`."
            )


def _term(table: pa.Table, term: str, parsed: dict[str, Mapping[str, Array]]) -> Array:
    """A term's values, NaN where a row lacks it; `parsed` caches the parsed JSON and struct columns."""
    column, _, entry = term.partition("/")
    if not entry:
        return floats(table, column)
    if column not in parsed:
        parsed[column] = _entries(table[column])
    values = parsed[column].get(entry, np.full(table.num_rows, np.nan))
    if np.isinf(values).any():
        raise ValueError(f"term '{term}' holds a value that is not finite")
    return values


def _entries(column: pa.ChunkedArray) -> dict[str, Array]:
    """The number entries of a JSON or struct column by name; equal texts are parsed once."""
    if pa.types.is_struct(column.type):
        table = pa.table({"entries": column}).flatten()
        fields = ((field.name.partition(".")[2], field.type) for field in table.schema)
        numbers = [name for name, kind in fields if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
        return {name: table[f"entries.{name}"].cast(pa.float64()).to_numpy() for name in numbers}
    encoded = one_array(pc.fill_null(column, "{}")).dictionary_encode()
    rows = encoded.indices.to_numpy()
    found: dict[str, Array] = {}
    for place, text in enumerate(encoded.dictionary.to_pylist()):
        for name, value in json.loads(text).items():
            if isinstance(value, int | float):
                found.setdefault(name, np.full(len(encoded.dictionary), np.nan))[place] = value
    return {name: values[rows] for name, values in found.items()}
