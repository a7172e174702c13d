"""The arguments of vLLM: our defaults, the recipe's options, and those that swaps and transports need."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from explorers.engines.parallel import parallel_sizes, unfit
from rft_data.core.engine import Sampling
from rft_data.core.errors import EngineError, RecipeError
from rft_data.core.lookup import need, suggest
from rft_data.core.model_folder import takes_images

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

_DEFAULTS: Mapping[str, object] = {
    "generation_config": "vllm",  # else vLLM adds sampling defaults of the model folder
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
}

_CPU_DEFAULTS: Mapping[str, object] = {
    "dtype": "float32",
    "enforce_eager": True,
    "kv_cache_memory_bytes": 64 << 20,  # without it vLLM takes 92 % of the machine's memory
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,  # 4096 of vLLM's own would change what every recorded seed samples
}

_OURS = ("model", "seed", "max_model_len", "worker_extension_cls", "logprobs_mode", "skip_tokenizer_init")

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(_OURS, "is set by the engine itself"),
    "trust_remote_code": "would run code from model repositories, which is never run",
    "mm_processor_kwargs": "would prepare images in another way than the trainer does",
    "worker_cls": "would replace the worker that loads published weights",
}
"""Fields of vLLM's EngineArgs that no recipe may set, and the reason."""


def check_options(options: Mapping[str, object]) -> None:
    """Refuse options of REFUSED; vLLM is not loaded.

    Raises: RecipeError for the first of them.
    """
    for name in options:
        if name in REFUSED:
            raise RecipeError(f"explorer.engine.options: '{name}' {REFUSED[name]}; remove it there.")


def check_head_size(size: int, model: str) -> None:
    """See that vLLM has attention for heads of this size, where it runs on a CPU. Raises: RecipeError."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    known = CPUAttentionBackend.get_supported_head_sizes()
    if size not in known:
        raise RecipeError(
            f"{model}: its attention heads are {size} wide, and vLLM has on a CPU those of "
            f"{', '.join(map(str, known))}; take another model (head = hidden_size / heads), or "
            "explorer.engine.use: transformers."
        )


def engine_arguments(
    model_path: Path, seed: int, max_model_len: int, options: Mapping[str, object], *, texts: bool = False
) -> EngineArgs:
    """vLLM's `EngineArgs`: the options over our defaults; `texts`: it needs the model's tokenizer.

    Raises: RecipeError for an option that vLLM does not have or that no recipe may set.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    check_options(options)
    known = {field.name for field in dataclasses.fields(EngineArgs)}
    for name in options:
        if name not in known:
            raise RecipeError(
                f"explorer.engine.options: vLLM's EngineArgs has no '{name}';{suggest(name, known)}"
            )
    return EngineArgs(
        model=str(model_path),
        seed=seed,
        max_model_len=max_model_len,
        worker_extension_cls="explorers.engines.vllm_worker.WeightExtension",
        # Of the distribution sampled from; raw ones ignore the temperature (0.84 nats off at 0.7).
        logprobs_mode="processed_logprobs",
        # vLLM cannot prepare images without it
        skip_tokenizer_init=not (texts or takes_images(model_path)),
        **{**_DEFAULTS, **(_CPU_DEFAULTS if current_platform.is_cpu() else {}), **options},
    )


def served_config(
    model_path: Path, seed: int, max_model_len: int, options: Mapping[str, object]
) -> VllmConfig:
    """vLLM's configuration of an engine that spreads over several devices.

    Raises: RecipeError as `engine_arguments`, and for sizes by which the model cannot be divided.
    """
    from vllm.usage.usage_lib import UsageContext

    parallel = parallel_sizes(options)
    for name, why in unfit(model_path, parallel):
        raise RecipeError(f"explorer.engine.options.{name} is {options[name]!r}: {why}.")
    # In an actor of Ray vLLM would take actors for workers, for which the placement reserves nothing.
    workers = {"distributed_executor_backend": "mp"} if parallel.tensor * parallel.pipeline > 1 else {}
    arguments = engine_arguments(model_path, seed, max_model_len, {**workers, **options})
    try:
        return arguments.create_engine_config(UsageContext.LLM_CLASS)
    except (ValueError, NotImplementedError) as err:
        raise RecipeError(
            f"explorer.engine.options: vLLM cannot divide {model_path} as {parallel}: {err}"
        ) from err


def needed_options(
    swap: str, options: Mapping[str, object], for_transport: Mapping[str, object]
) -> dict[str, object]:
    """Options that the swap setting and the transport need.

    Raises: RecipeError when the recipe sets another value.
    """
    needed = dict(for_transport)
    if swap != "drain":
        # Async scheduling computes a step ahead: tokens of the old weights would come after the swap.
        needed["async_scheduling"] = False
    for name, value in needed.items():
        if options.get(name, value) != value:
            raise RecipeError(
                f"explorer.engine.options.{name} is {options[name]!r}, but swap '{swap}' over this transport "
                f"needs {value!r}; remove the option."
            )
    return needed


SCORING: Mapping[str, object] = {"max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
"""Fields of `SamplingParams` for the logprobs of a prompt."""


def request_parameters(sampling: Sampling, end_ids: Sequence[int]) -> dict[str, object]:
    """Fields of `SamplingParams` for one completion; text is made only to find stop strings in it."""
    return {
        "max_tokens": sampling.max_tokens,
        "min_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "logprobs": 0,
        "flat_logprobs": True,  # else a dict and an object for each token, which every collection visits
        "stop_token_ids": end_ids,
        "detokenize": bool(sampling.stop),
        "skip_special_tokens": False,
        **({"stop": list(sampling.stop)} if sampling.stop else {}),
    }


def give_tokenizer(llm: LLMEngine, model_path: Path) -> None:
    """Give a running `LLMEngine` what it finds stop strings with; it is started without a tokenizer."""
    if llm.output_processor.tokenizer is None:
        llm.output_processor.tokenizer = stop_tokenizer(model_path)


def stop_tokenizer(model_path: Path) -> PreTrainedTokenizerBase:
    """Tokenizer with which stop strings are found."""
    transformers = need("transformers", "train", "stop strings")
    return transformers.AutoTokenizer.from_pretrained(model_path)


def started(arguments: EngineArgs, model_path: Path, options: Mapping[str, object]) -> LLMEngine:
    """A running `LLMEngine`, of the sizes that vLLM's own `LLM` has: those of a bare engine are small."""
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    try:
        return LLMEngine.from_engine_args(arguments, UsageContext.LLM_CLASS)
    except (ValueError, TypeError, RuntimeError, OSError, AssertionError) as err:
        raise EngineError(f"vLLM cannot start on {model_path} with options {dict(options)}: {err}") from err
