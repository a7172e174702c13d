"""Several engines as one: a conversation stays with the engine that has its prefix in the cache.

A new conversation goes to the engine with the fewest. Where engines are too unequal, a turn of a
conversation on the fullest one moves it to the emptiest. The pin ends with the rollout, whatever its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NotRequired, TypedDict

from explorers.engines.conversation import Conversation, present
from explorers.engines.images import Fetch, accepted, images_from
from explorers.engines.make import LiveEngine, make_engine
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import RecipeError
from rft_data.core.rows import WeightRef

_REPIN_ABOVE = 4
_SEEDS_APART = 1_000_003
"""So that no engine of an explorer samples with the seed of another explorer."""


class RoutedSettings(TypedDict):
    """One engine of several, as a recipe names it."""

    use: str
    options: NotRequired[dict[str, object]]


class RoutedEngine:
    """Serves one policy version on several engines of one explorer."""

    def __init__(
        self,
        model_path: Path,
        *,
        seed: int,
        max_model_len: int,
        options: Mapping[str, object],
        swap: str = "drain",
        transport: Mapping[str, object] | None = None,
    ) -> None:
        """Start the engines.

        Args:
            model_path: Hugging Face folder, for each of them.
            options: `engines`: for each its `use` and `options`; `repin_above` (default 4): a conversation
                moves when the fullest engine has so many more than the emptiest.

        Raises: RecipeError for other options, and what the engines raise; those started by then are closed.
        """
        engines, self._repin_above = checked_engines(options)
        self.engines: list[LiveEngine] = []
        self._load: list[int] = []
        self._pins: dict[Conversation, int] = {}
        self.repinned = 0
        """Conversations that were moved to another engine."""
        shared = {"max_model_len": max_model_len, "swap": swap, "transport": transport}
        try:
            for number, one in enumerate(engines):
                own = {"use": one["use"], "options": one.get("options", {})}
                settings = {**own, **shared, "seed": seed + number * _SEEDS_APART}
                self.engines.append(make_engine(settings, str(model_path)))
                self._load.append(0)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> int:
        """The lowest version of the engines, which differ only while weights are loaded.

        Raises: ParityError when one of them has none.
        """
        return min(engine.version for engine in self.engines)

    @property
    def load(self) -> tuple[int, ...]:
        """For each engine its open conversations, and its requests that belong to none."""
        return tuple(self._load)

    def images_from(self, fetch: Fetch) -> None:
        """Take the bytes of images from here."""
        for engine in self.engines:
            images_from(engine, fetch)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, images: Sequence[str] = ()
    ) -> Completion:
        """`Engine.generate`, on the engine of the present conversation."""
        one = present()
        if one is not None:
            engine = self.engines[self._pinned(one)]
            return await engine.generate(prompt_ids, sampling, **accepted(engine, images))
        number = self._emptiest()
        self._load[number] += 1
        try:
            engine = self.engines[number]
            return await engine.generate(prompt_ids, sampling, **accepted(engine, images))
        finally:
            self._load[number] -= 1

    def load_weights(self, ref: WeightRef) -> float:
        """`Engine.load_weights`, on one after the other; the largest difference."""
        return max(engine.load_weights(ref) for engine in self.engines)

    async def swap_weights(self, ref: WeightRef) -> float:
        """The same with requests in flight, on all at once; raises the first error when all have ended."""
        found = await asyncio.gather(
            *(engine.swap_weights(ref) for engine in self.engines), return_exceptions=True
        )
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return max(one for one in found if not isinstance(one, BaseException))

    def close(self) -> None:
        """Close all engines; idempotent."""
        for engine in self.engines:
            engine.close()

    def _pinned(self, one: Conversation) -> int:
        """The engine of a conversation, chosen at its first turn and again where engines are too unequal."""
        at = self._pins.get(one)
        if at is None:
            one.at_end.append(partial(self._end, one))
        elif self._load[at] - min(self._load) <= self._repin_above:
            return at
        else:
            self._load[at] -= 1
            self.repinned += 1
        at = self._pins[one] = self._emptiest()
        self._load[at] += 1
        return at

    def _emptiest(self) -> int:
        return min(range(len(self._load)), key=self._load.__getitem__)

    def _end(self, one: Conversation) -> None:
        self._load[self._pins.pop(one)] -= 1


def _is_named(one: object) -> bool:
    return isinstance(one, dict) and "use" in one and not one.keys() - {"use", "options"}


def checked_engines(options: Mapping[str, object]) -> tuple[Sequence[RoutedSettings], int]:
    """`engines` and `repin_above` of the options. Raises: RecipeError."""
    engines, above = options.get("engines"), options.get("repin_above", _REPIN_ABOVE)
    if not isinstance(engines, list) or not engines or not all(map(_is_named, engines)):
        raise RecipeError(
            f"explorer.engine.options.engines is {engines!r}; wanted a list of engines, each with 'use' and "
            "perhaps 'options', for example [{use: transformers, options: {device: 'cuda:0'}}, ...]."
        )
    if not isinstance(above, int) or isinstance(above, bool) or above < 1:
        raise RecipeError(
            f"explorer.engine.options.repin_above is {above!r}; wanted a whole number, 1 or more."
        )
    if unknown := options.keys() - {"engines", "repin_above"}:
        raise RecipeError(
            f"explorer.engine.options.{min(unknown)} is not an option of the engine 'routed'; it has "
            "'engines' and 'repin_above'."
        )
    return engines, above
