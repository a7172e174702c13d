"""What an engine does with images before vLLM sees them: each is read and decoded once; nothing for text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from explorers.engines.vllm_images import VllmImages, refusals
from rft_data.core.canonical import bytes_id
from rft_data.core.errors import ContextOverflow, EngineError, RecipeError, RowError
from tests.tiny_vision import png

IMAGE = png(1, side=64)
NAME = bytes_id(IMAGE)

_IMPORTS = """
import sys
import explorers.role, explorers.engines.vllm_images, explorers.workflows.single_turn
import explorers.conversations.model, rft_data.run.image_checks, rft_data.tasks.task_images
print(sorted({"PIL", "torch", "transformers", "torchvision", "vllm"} & set(sys.modules)))
"""


@pytest.fixture
def seeing(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"vision_config": {}, "image_token_id": 9}')
    return tmp_path


def test_256_prompts_with_one_image_share_its_pixels(seeing: Path) -> None:
    read: list[str] = []
    images = VllmImages(seeing, "drain")
    images.come_from(lambda name: read.append(name) or IMAGE)  # type: ignore[func-returns-value]
    prompts = [images.of_prompt([NAME], "v1") for _ in range(256)]
    assert read == [NAME]
    assert len({id(prompt["multi_modal_data"]["image"][0]) for prompt in prompts}) == 1


def test_what_vllm_keeps_of_an_image_has_the_version_in_its_name(seeing: Path) -> None:
    images = VllmImages(seeing, "drain")
    images.come_from(lambda _: IMAGE)
    first, second = (images.of_prompt([NAME], salt)["multi_modal_uuids"]["image"] for salt in ("v1", "v2"))
    assert first != second


def test_a_text_prompt_has_no_fields_for_images(tmp_path: Path) -> None:
    assert VllmImages(tmp_path, "recompute").of_prompt([], "v1") == {}


def test_a_model_without_eyes_and_what_cannot_be_shown_are_refused(tmp_path: Path, seeing: Path) -> None:
    with pytest.raises(RecipeError, match="swap is recompute, and the model looks at images"):
        VllmImages(seeing, "recompute")
    images = VllmImages(seeing, "drain")
    with pytest.raises(EngineError, match="call images_from first"):
        images.of_prompt([NAME], "v1")
    images.come_from(lambda _: b"no image")
    with pytest.raises(RowError, match=f"payload '{NAME}' is no image"):
        images.of_prompt([NAME], "v1")
    with pytest.raises(RowError, match="sampled token 9, the placeholder"):
        images.check_sampled([3, 9])
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RowError, match="has no vision_config"):
        VllmImages(tmp_path, "drain").of_prompt([NAME], "v1")


def test_only_a_prompt_with_images_hides_what_vllm_refuses() -> None:
    with pytest.raises(ContextOverflow, match="with its 1 images is too long"), refusals([NAME]):
        raise ValueError("is longer than the maximum model length of 64.")
    with pytest.raises(RowError, match="cannot take the prompt"), refusals([NAME]):
        raise ValueError("At most 1 image(s) may be provided")
    with pytest.raises(ValueError, match="other"), refusals([]):
        raise ValueError("other")


@pytest.mark.slow
def test_the_text_path_imports_nothing_for_images() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
