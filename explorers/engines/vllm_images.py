"""Images of a request to vLLM: stored bytes to pixels, once for each image, and the prompt they make.

vLLM puts an image's placeholders into the prompt itself: a prompt has one placeholder for each image, and
the answer tells what it became. What vLLM computes from an image is kept under the name that is given here,
across weight swaps, so the name has the version of the weights in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from explorers.engines.decoded_images import DecodedImages
from explorers.engines.images import Fetch
from rft_data.core.errors import ContextOverflow, EngineError, RecipeError, RowError
from rft_data.core.model_folder import placeholder_id, processor_hash, takes_images


class VllmImages:
    """The images that one engine shows its model."""

    def __init__(self, model_path: Path, swap: str) -> None:
        """Raises: RecipeError for a swap that would go on with what old weights saw in an image."""
        self.taken = takes_images(model_path)
        """Whether the model looks at images."""
        if self.taken and swap == "recompute":
            raise RecipeError(
                "explorer.engine.swap is recompute, and the model looks at images: vLLM would go on with "
                "what the old weights saw in them; use drain or continue."
            )
        self.processor = processor_hash(model_path) if self.taken else ""
        self._placeholder = placeholder_id(model_path)
        self._model_path = model_path
        self._decoded: DecodedImages | None = None

    def come_from(self, fetch: Fetch) -> None:
        """Take the bytes of images from here."""
        self._decoded = DecodedImages(fetch) if self.taken else None

    def of_prompt(self, names: Sequence[str], salt: str) -> dict[str, object]:
        """Fields of vLLM's prompt for these payloads; empty without any.

        Raises: RowError for a model that takes none, and for bytes that are no image.
        """
        if not names:
            return {}
        if not self.taken:
            raise RowError(
                f"the task shows images, and the model in '{self._model_path}' takes none (its config.json "
                "has no vision_config); use a vision-language model, or other tasks."
            )
        if self._decoded is None:
            raise EngineError("the engine was not told where images are stored; call images_from first.")
        return {
            "multi_modal_data": {"image": [self._decoded(name) for name in names]},
            "multi_modal_uuids": {"image": [f"{name}-{salt}" for name in names]},
        }

    def check_sampled(self, token_ids: Sequence[int]) -> None:
        """Raises: RowError when the model sampled a placeholder: the trainer would look for an image."""
        if self._placeholder in token_ids:
            raise RowError(
                f"the model sampled token {self._placeholder}, the placeholder of an image; such a row "
                "cannot be trained on."
            )


@contextmanager
def refusals(names: Sequence[str]) -> Iterator[None]:
    """Refusals by vLLM of a prompt with images, as an error of that prompt alone.

    How many tokens an image takes is known only to vLLM, so a prompt that is too long shows here.
    Raises: ContextOverflow, RowError.
    """
    try:
        yield
    except (ValueError, AssertionError) as err:
        if not names:
            raise
        if "maximum model length" in str(err):
            raise ContextOverflow(
                f"the prompt with its {len(names)} images is too long ({err}); raise "
                "explorer.engine.max_model_len or show smaller images."
            ) from err
        raise RowError(f"vLLM cannot take the prompt with its {len(names)} images: {err}") from err
