"""Makes the engine that a recipe names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from explorers.engines.parallel import parallel_sizes
from explorers.engines.resting import Rest
from rft_data.core.engine import Engine
from rft_data.core.errors import EngineError, RecipeError
from rft_data.core.lookup import load, lookup
from rft_data.core.model_folder import takes_images
from rft_data.core.rows import WeightRef

ENGINES: Mapping[str, str] = {
    "transformers": "explorers.engines.transformers_engine:TransformersEngine",
    "vllm": "explorers.engines.vllm_engine:VllmEngine",
    "routed": "explorers.engines.routing:RoutedEngine",
    "openai": "explorers.engines.openai_engine:OpenaiEngine",
}
"""Engine name to import path; an engine's library is imported only when a recipe names the engine."""

_SERVED = "explorers.engines.vllm_served:ServedVllmEngine"
"""`vllm` where its options spread it over several devices."""


class LiveEngine(Engine, Protocol):
    """An engine whose weights can be swapped while requests are in flight."""

    async def swap_weights(self, ref: WeightRef) -> float:
        """`load_weights`, with requests in flight; see `explorers.engines.swap`."""
        ...


def make_engine(settings: Mapping[str, object], model: str, *, texts: bool = False) -> LiveEngine:
    """Make the engine that `settings["use"]` names.

    `texts`: vLLM's own server is put over it; see `can_be_served`.
    Raises: UnknownComponentError; MissingExtraError when its package is not installed; RecipeError for
        arguments it does not take.
    """
    name, kind = str(settings["use"]), _kind(settings)
    arguments = {key: value for key, value in settings.items() if key != "use"}
    if texts:
        can_be_served(settings, Path(model))
        arguments["texts"] = True
    try:
        built = kind(Path(model), **arguments)
    except TypeError as err:
        raise RecipeError(f"explorer.engine '{name}' does not take {sorted(arguments)}: {err}.") from err
    return built


def can_be_served(settings: Mapping[str, object], model: Path) -> None:
    """Check that vLLM's own server can be put over an engine. Raises: RecipeError where it cannot."""
    spread = parallel_sizes(_options(settings))
    if settings["use"] != "vllm":
        why = f"explorer.engine.use is '{settings['use']}', and it needs 'vllm'"
    elif spread.served:
        why = f"explorer.engine.options spread the engine ({spread}), and it needs one process on one device"
    elif takes_images(model):
        why = f"the model {model} looks at images, and only text can be recorded there"
    else:
        return
    raise RecipeError(
        f"explorer.workflow.args.server is 'vllm', vLLM's own server: {why}; remove it for the small server."
    )


def takes_messages(settings: Mapping[str, object]) -> bool:
    """Whether the engine that `settings["use"]` names is a `ChatEngine`. Raises: UnknownComponentError."""
    return hasattr(_kind(settings), "chat")


def engine_metrics(engine: Engine) -> dict[str, float]:
    """The counts of an engine; empty where it has no `metrics`."""
    found: dict[str, float] = engine.metrics() if hasattr(engine, "metrics") else {}
    return found


def engine_rest(engine: Engine) -> Rest:
    """Part of an engine that puts it to sleep. Raises: EngineError for one that cannot sleep."""
    rest = getattr(engine, "rest", None)
    if not isinstance(rest, Rest):
        raise EngineError(f"{type(engine).__name__} cannot sleep; use the engine vllm to share its GPUs.")
    return rest


def _options(settings: Mapping[str, object]) -> Mapping[str, object]:
    """Raises: RecipeError for what is no mapping."""
    given = settings.get("options") or {}
    if not isinstance(given, Mapping):
        raise RecipeError(
            f"explorer.engine.options is {given!r:.200}; wanted options by name: {{dtype: float32}}."
        )
    return given


def _kind(settings: Mapping[str, object]) -> Callable[..., LiveEngine]:
    name = str(settings["use"])
    if name == "vllm" and parallel_sizes(_options(settings)).served:
        served: Callable[..., LiveEngine] = load(_SERVED, "engine")
        return served
    kind: Callable[..., LiveEngine] = load(name if ":" in name else lookup(name, ENGINES, "engine"), "engine")
    return kind
