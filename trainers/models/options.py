"""Checks a recipe's `trl: {...}` against the real TRL config class and builds that config.

It does not re-declare TRL's fields: it knows only which of them the run decides itself, and why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from rft_data.core.errors import RecipeError, RftError
from rft_data.core.lookup import suggest

Config = TypeVar("Config")
Made = TypeVar("Made")


def refused(reason: str, *names: str) -> dict[str, str]:
    """A table that refuses `names` for one reason; merge several into the `owned` of `check_options`."""
    return dict.fromkeys(names, reason)


OWNED: Mapping[str, str] = {
    **refused("the run decides where its files are", "output_dir", "run_name", "project"),
    **refused("the recipe's own seed is used", "seed", "data_seed"),
    **refused(
        "the run writes, keeps and resumes checkpoints",
        *("save_strategy", "save_steps", "save_total_limit", "save_only_model", "enable_jit_checkpoint"),
        *("load_best_model_at_end", "resume_from_checkpoint", "ignore_data_skip"),
        "restore_callback_states_from_checkpoint",
    ),
    **refused(
        "every step is logged, unfiltered", "logging_strategy", "logging_steps", "logging_nan_inf_filter"
    ),
    **refused("evaluation is the explorers' work", "do_eval", "eval_strategy", "eval_steps", "eval_on_start"),
    **refused(
        "nothing is uploaded",
        *("push_to_hub", "hub_token", "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision"),
    ),
    **refused("code from model repositories is never run", "trust_remote_code"),
    **refused(
        "the batch size must stay what the recipe says", "auto_find_batch_size", "remove_unused_columns"
    ),
}
"""Fields of every TRL config that no recipe may set, and the reason."""


def accelerator_defaults() -> dict[str, Any]:
    """Defaults that TRL would choose for a GPU, for the device that is here."""
    if torch.cuda.is_available():
        return {}
    return {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "dataloader_pin_memory": False}


def check_options(options: Mapping[str, Any], config_class: type, owned: Mapping[str, str]) -> None:
    """Refuse options that TRL does not know or that would not do what they say.

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
    if "trust_remote_code" in (options.get("model_init_kwargs") or {}):
        problems.append(
            f"'model_init_kwargs.trust_remote_code' cannot be set here: {OWNED['trust_remote_code']}"
        )
    if problems:
        raise RecipeError("trl: " + "; ".join(problems) + ". Correct or remove these keys.")


def build_config(
    config_class: type[Config], output_dir: Path, options: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Config:
    """Construct the real config: our defaults, then the recipe's options, then what the run fixes.

    Raises: RecipeError with TRL's own words when TRL refuses the combination.
    """
    defaults = {"report_to": "none", "disable_tqdm": True, **accelerator_defaults()}
    ours = {
        "output_dir": str(output_dir),
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


def _listed(options: Mapping[str, Any]) -> str:
    pairs: Iterable[str] = (f"{name}={value!r}" for name, value in options.items())
    return ", ".join(pairs) or "its defaults"


def built(make: Callable[[], Made], what: str) -> Made:
    """Construct a TRL trainer.

    Raises: RecipeError with TRL's own words when it refuses its options or their combination.
    """
    try:
        return make()
    except (ValueError, TypeError, ImportError, NotImplementedError) as err:
        if isinstance(err, RftError):
            raise
        raise RecipeError(
            f"trl: {what} refuses its options: {err} Change the stage's 'trl' or 'lora'."
        ) from err
