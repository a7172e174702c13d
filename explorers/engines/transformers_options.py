"""The options of the transformers engine, and what is wrong with given ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rft_data.core.errors import RecipeError
from rft_data.core.gpus import gpu_number
from rft_data.core.lookup import suggest

DEFAULTS: Mapping[str, object] = {"dtype": "float32", "device": "cpu", "max_num_seqs": 256}
"""Every option, and its value where a recipe gives none."""


def engine_settings(options: Mapping[str, object]) -> dict[str, Any]:
    """The options over the defaults. Raises: RecipeError for the first that cannot be used."""
    for name, why in [*wrong_options(options), *missing_device(options, torch.cuda.device_count())]:
        raise RecipeError(f"explorer.engine.options.{name} {why}.")
    return {**DEFAULTS, **options}


def wrong_options(options: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The options that no machine takes, and why."""
    for name, value in options.items():
        if name not in DEFAULTS:
            known = ", ".join(sorted(DEFAULTS))
            yield (
                name,
                f"is not an option of the transformers engine;{suggest(name, DEFAULTS)} Known: {known}",
            )
        elif wanted := _wanted(name, value):
            yield name, f"is {value!r}; give {wanted}"


def missing_device(options: Mapping[str, object], gpus: int) -> Iterator[tuple[str, str]]:
    """The option `device` where it names a GPU beyond the `gpus` that the explorer sees."""
    device = str(options.get("device"))
    number = gpu_number(device)
    if number is not None and number >= gpus:
        yield "device", f"is '{device}', and the explorer sees {gpus or 'no'} GPUs; give one it sees, or cpu"


def _wanted(name: str, value: object) -> str:
    """Value to give for an option in place of a value that it cannot have; empty for one that it can."""
    if name == "max_num_seqs":
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        return "" if whole else "a whole number from 1"
    if name == "dtype":
        dtype = getattr(torch, value, None) if isinstance(value, str) else None
        floats = isinstance(dtype, torch.dtype) and dtype.is_floating_point
        return "" if floats or value == "auto" else "float32, bfloat16, float16 or auto"
    try:
        torch.device(str(value))
    except RuntimeError:
        return "cpu or cuda:0, as torch names devices"
    return ""
