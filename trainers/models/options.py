"""Checks a recipe's `trl: {...}` against the real TRL config class, and builds that config.

TRL's fields are not declared again here: only those that a recipe may not set are listed, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rft_data.core.errors import RecipeError, RftError
from rft_data.core.lookup import suggest
from trainers.models.owned import LOADING_OWNED

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Config = TypeVar("Config")
Section = TypeVar("Section", bound="DataclassInstance")
Made = TypeVar("Made")


def accelerator_defaults() -> dict[str, bool]:
    """Options that replace TRL's defaults where there is no GPU; empty where there is one."""
    import torch  # seconds: those who ask for a recipe's arithmetic do not need it

    if torch.cuda.is_available():
        return {}
    return {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}


def check_options(options: Mapping[str, object], config_class: type, owned: Mapping[str, str]) -> None:
    """Refuse options that TRL does not know, and options that the run decides itself.

    Args: owned: names that no recipe may set, with the reason.
    Raises: RecipeError naming every bad key of the recipe's `trl` section at once.
    """
    known = {field.name for field in dataclasses.fields(config_class) if field.init}
    problems = [
        *(
            f"'{name}' is not an option of TRL's {config_class.__name__};{suggest(name, known - set(owned))}"
            for name in options
            if name not in known
        ),
        *(f"'{name}' cannot be set here: {owned[name]}" for name in options if name in owned),
    ]
    problems += [
        f"'model_init_kwargs.{name}' cannot be set here: {LOADING_OWNED[name]}"
        for name in loading_options(options)
        if name in LOADING_OWNED
    ]
    if problems:
        raise RecipeError("trl: " + "; ".join(problems) + ". Correct or remove these keys.")


def loading_options(options: Mapping[str, object]) -> Mapping[str, object]:
    """The recipe's `trl: {model_init_kwargs}`, with which models are loaded; empty where it is not given.

    Raises: RecipeError when it is no mapping.
    """
    given = options.get("model_init_kwargs") or {}
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"trl.model_init_kwargs is {given!r}, must be a mapping of arguments of `from_pretrained`, for "
            "example {dtype: bfloat16}."
        )
    return given


def accumulation_steps(options: Mapping[str, object]) -> int:
    """The recipe's `trl: {gradient_accumulation_steps}`, micro-batches per optimizer step; 1 by default.

    Raises: RecipeError when it is no whole number above 0.
    """
    given = options.get("gradient_accumulation_steps", 1)
    if not isinstance(given, int) or given < 1:
        raise RecipeError(
            f"trl.gradient_accumulation_steps is {given!r}, must be a whole number above 0: how many "
            "micro-batches one optimizer step has."
        )
    return given


def padded_rows(rows: int, *, micro_batches: int, ranks: int) -> int:
    """The smallest number of rows that is at least `rows` and can be dealt.

    With several ranks it is a multiple of 2 x ranks x micro-batches (TRL asks for an even batch on each
    rank). In one process it is `rows` itself.
    """
    if ranks == 1:
        return rows
    unit = 2 * ranks * micro_batches
    return -(-rows // unit) * unit


def section(kind: type[Section], name: str, given: Mapping[str, object]) -> Section:
    """The dataclass `kind` with the values that the recipe's section `name` gives.

    Raises: RecipeError naming every key that `kind` has no field for; what `kind` raises for bad values.
    """
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = [f"'{key}';{suggest(str(key), known)}" for key in given if key not in known]
    if unknown:
        raise RecipeError(f"{name} has no {', '.join(unknown)} It has {', '.join(known)}.")
    return kind(**given)


def build_config(
    config_class: type[Config], output_dir: Path, options: Mapping[str, object], fixed: Mapping[str, object]
) -> Config:
    """Construct the real config: our defaults, then the recipe's options, then the values that the run fixes.

    Raises: RecipeError with TRL's own message when TRL refuses the combination.
    """
    defaults = {"disable_tqdm": True, **accelerator_defaults()}
    ours = {
        "output_dir": str(output_dir),
        "report_to": "none",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
    }
    chosen = {name: value for name, value in options.items() if name != "model_init_kwargs"}
    try:
        return config_class(**{**defaults, **chosen, **ours, **fixed})
    except (ValueError, TypeError, ImportError) as err:
        raise RecipeError(
            f"trl: {config_class.__name__} refuses {_listed(chosen)}: {err} Change these keys of the recipe."
        ) from err


def _listed(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items()) or "its defaults"


def built(make: Callable[[], Made], what: str) -> Made:
    """Call `make`, which constructs the TRL trainer named `what`.

    Raises: RecipeError with TRL's own message when it refuses its options or their combination.
    """
    try:
        return make()
    except (ValueError, TypeError, ImportError, NotImplementedError) as err:
        if isinstance(err, RftError):
            raise
        raise RecipeError(
            f"trl: {what} refuses its options: {err} Change the stage's 'trl' or 'lora'."
        ) from err
