"""The sources of rows that are no tasks: stored rollouts to score, answers and pairs to import."""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Tag

from rft_data.recipe.task_sources import (
    FileTasks,
    FunctionTasks,
    HuggingFaceTasks,
    JsonLines,
    ModelScopeTasks,
    kind_of_source,
)

RowSource = Annotated[
    Annotated[JsonLines, Tag("jsonl")]
    | Annotated[FileTasks, Tag("file")]
    | Annotated[HuggingFaceTasks, Tag("huggingface")]
    | Annotated[ModelScopeTasks, Tag("modelscope")]
    | Annotated[FunctionTasks, Tag("function")],
    Discriminator(
        kind_of_source,
        custom_error_type="unknown_source",
        custom_error_message="'use' is file, huggingface, modelscope, jsonl, or a function of your own "
        "('./file.py:function'). Generators make tasks and no answers; rows that a buffer holds already are "
        "chosen by a stage's 'data', and scored anew by rft data rescore",
    ),
]
"""Sources whose rows are read as they are."""
