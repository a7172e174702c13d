"""Options of an engine that vLLM refuses, found by making its configuration; no weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from explorers.engines.vllm_options import engine_arguments

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_REFUSALS = (ValueError, TypeError, RuntimeError, LookupError, AttributeError, AssertionError, OSError)
"""Errors of vLLM for a value that it does not take."""


@dataclass(frozen=True, slots=True)
class Trial:
    """An engine to be, of which only vLLM's configuration is made."""

    model_path: Path
    """A folder with the model's config.json."""
    max_model_len: int
    seed: int
    as_here: bool
    """Whether model and devices are those of the run; else only what vLLM never takes counts."""

    def refused(self, options: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        """The options that vLLM refuses and what it says; the name is empty where it is about none of them.

        Raises: RecipeError for an option that vLLM does not have or that no recipe may set.
        """
        rest = dict(options)
        while said := self._refusal(rest):
            guilty = next((name for name in rest if self._refusal(_without(rest, name)) != said), "")
            yield guilty, said
            if not guilty:
                return
            del rest[guilty]

    def _refusal(self, options: Mapping[str, object]) -> str:
        """The first thing that vLLM has against these options; empty without any."""
        from vllm.usage.usage_lib import UsageContext

        try:
            arguments = engine_arguments(self.model_path, self.seed, self.max_model_len, options)
            config = arguments.create_engine_config(UsageContext.LLM_CLASS)
            _check_later(config)
        except ValidationError as err:
            first = err.errors()[0]
            of_a_field = bool(first["loc"])
            said = first["msg"].removeprefix("Value error, ")
        except _REFUSALS as err:
            of_a_field, said = False, f"{err}" or type(err).__name__
        else:
            return ""
        return said if self.as_here or of_a_field else ""


def _without(options: Mapping[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in options.items() if key != name}


def _check_later(config: VllmConfig) -> None:
    """Check of what vLLM reads when it loads the model. Raises: ValueError."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.v1.attention.selector import get_attn_backend
    from vllm.v1.worker.utils import select_common_block_size

    get_model_loader(config.load_config)
    model, cache = config.model_config, config.cache_config
    if not cache.user_specified_block_size:
        return
    with set_current_vllm_config(config):
        backend = get_attn_backend(
            model.get_head_size(), model.dtype, cache.cache_dtype, use_mla=model.use_mla
        )
    select_common_block_size(cache.block_size, [backend])
