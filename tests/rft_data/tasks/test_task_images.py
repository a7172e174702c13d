"""Images of tasks: paths or data URIs in a file become payloads, and parts of the prompt that name them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.canonical import bytes_id
from rft_data.core.errors import MissingFileError, RecipeError, RowError
from rft_data.core.images import for_template, image_ids, image_part
from rft_data.core.rows import Task
from rft_data.recipe.tasksets import Taskset
from rft_data.run.build import store_task_images, taskset_tasks
from rft_data.run.image_checks import check_images
from rft_data.tasks.table import edited_tasks, prompt_text, task_table

RED, BLUE = b"\x89PNG\r\n\x1a\nred", b"\xff\xd8\xffblue"
URI = "data:image/jpeg;base64," + base64.b64encode(BLUE).decode()


@pytest.fixture
def taskset(tmp_path: Path) -> Any:
    (tmp_path / "red.png").write_bytes(RED)

    def made(*lines: dict[str, object], **fields: object) -> Taskset:
        file = tmp_path / "tasks.jsonl"
        file.write_text("".join(json.dumps({"answer": "a", **line}) + "\n" for line in lines))
        source = {"use": "jsonl", "path": str(file)}
        return Taskset.model_validate({"name": "seen", "source": source, "images": "images", **fields})

    return made


@pytest.mark.slow
def test_images_become_parts_of_the_prompt_and_payloads_stored_once(taskset: Any, tmp_path: Path) -> None:
    section = taskset(
        {"question": "Which?", "images": ["red.png", URI]},
        {"question": "A <image> then <image>!", "images": ["red.png", "red.png"]},
        {"question": "No image.", "images": None},
    )
    first, second, third = taskset_tasks(section, None, "run")
    text = {"type": "text", "text": "Which?"}
    assert first.messages[0]["content"] == [image_part(bytes_id(RED)), image_part(bytes_id(BLUE)), text]
    assert [part["type"] for part in second.messages[0]["content"]] == [
        "text",
        "image",
        "text",
        "image",
        "text",
    ]
    assert image_ids(second.messages) == (bytes_id(RED),) * 2
    assert third.messages[0]["content"] == "No image."
    assert not any("images" in task.metadata for task in (first, second, third))
    with Buffer(tmp_path / "buffer") as buffer:
        store_task_images([section], buffer)
        store_task_images([section], buffer)
        assert buffer.counts()["payloads"] == 2
        assert buffer.payload(bytes_id(RED)) == ("image/png", RED)
        assert buffer.payload(bytes_id(BLUE)) == ("image/jpeg", BLUE)


def test_the_same_question_about_another_image_is_another_task(taskset: Any) -> None:
    lines = [{"question": "Which?", "images": "red.png"}, {"question": "Which?", "images": URI}]
    one, other = taskset_tasks(taskset(*lines), None, "run")
    assert one.task_id != other.task_id


@pytest.mark.parametrize(
    ("line", "error", "match"),
    [
        (
            {"question": "q", "images": "blue.png"},
            MissingFileError,
            r"tasks.jsonl:1: there is no image .*blue",
        ),
        (
            {"question": "q", "images": "iVBORw0KGgo" * 1000},
            MissingFileError,
            r"there is no image '.{,100}'; wanted a path relative .*, or 'data:TYPE;base64",
        ),
        ({"question": "q", "images": "data:image/png;base64,?"}, RowError, "is not 'data:TYPE;base64"),
        ({"question": "q", "images": [3]}, RowError, "'images' holds int; wanted paths or data URIs"),
        ({"question": "q"}, RowError, "there is no field 'images'"),
        ({"question": "<image><image>", "images": "red.png"}, RowError, "2 marks <image> and 1 images"),
    ],
)
def test_a_line_whose_images_cannot_be_read_is_named(
    taskset: Any, line: dict[str, object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        taskset_tasks(taskset(line), None, "run")


def test_only_a_file_has_a_field_of_images() -> None:
    source = {"use": "reasoning_gym", "dataset": "chain_sum", "size": 3}
    with pytest.raises(ValueError, match="'images' is for rows of a table"):
        Taskset.model_validate({"name": "t", "source": source, "images": "images"})


def test_text_operators_see_the_text_of_a_prompt_and_leave_its_images(taskset: Any) -> None:
    [task] = taskset_tasks(taskset({"question": "Which?", "images": "red.png"}), None, "run")
    assert prompt_text(task.messages) == "Which?"
    table = task_table([task])
    at = table.schema.get_field_index("text")
    [edited] = edited_tasks([task], [0], table.set_column(at, table.schema.field(at), [["Which one?"]]))
    assert edited.messages[0]["content"] == [
        image_part(bytes_id(RED)),
        {"type": "text", "text": "Which one?"},
    ]


def test_a_template_is_given_placeholders_and_texts_stay_as_they_are() -> None:
    plain = {"role": "user", "content": "hi"}
    openai = {"type": "image_url", "image_url": {"url": f"payload:{bytes_id(RED)}"}}
    asked = {"role": "user", "content": [openai, {"type": "text", "text": "?"}]}
    assert for_template([plain]) == [plain]
    assert image_ids([plain, asked]) == (bytes_id(RED),)
    assert for_template([asked])[0]["content"] == [{"type": "image"}, {"type": "text", "text": "?"}]
    with pytest.raises(RowError, match="no stored payload"):
        image_ids([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]}])


def test_a_model_or_engine_without_eyes_is_refused_before_the_start(tmp_path: Path) -> None:
    shown = Task("seen", ({"role": "user", "content": [image_part(bytes_id(RED))]},), "a")
    text = Task("read", ({"role": "user", "content": "q"},), "a")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    check_images([text], tmp_path, "transformers", {})
    beside = Task("beside", text.messages, "a", metadata={"images": [f"payload:{bytes_id(RED)}"]})
    with pytest.raises(RecipeError, match="'beside' has images in its metadata that its prompt does not"):
        check_images([text, beside], tmp_path, "vllm", {})
    with pytest.raises(
        RecipeError, match=r"tasks of 'seen' show images, and the engine 'transformers' takes"
    ):
        check_images([text, shown], tmp_path, "transformers", {})
    with pytest.raises(RecipeError, match="the engine 'transformers'"):
        check_images([shown], tmp_path, "routed", {"engines": [{"use": "vllm"}, {"use": "transformers"}]})
    with pytest.raises(RecipeError, match="has no vision_config"):
        check_images([shown], tmp_path, "vllm", {})
    linked = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y"}}]}
    with pytest.raises(RowError, match=r"task '\w+' of 'linked': a message shows an image that is no stored"):
        check_images([Task("linked", (linked,), "a")], tmp_path, "vllm", {})
    (tmp_path / "config.json").write_text('{"model_type": "llava", "vision_config": {}}')
    check_images([shown], tmp_path, "vllm", {})
