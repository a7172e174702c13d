"""TRL-ready training sets: SFT, DPO, KTO and GRPO prompts. Only written; read again as TRL's own types.

Evaluation and held-out rows never get into one, and neither does metadata; a row the trainer would learn the
wrong thing from is left out with the reason.
"""

from __future__ import annotations

from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.exchange.formats.preferences import explicit, without, write_preference
from rft_data.exchange.formats.records import Choices, Format, Row
from rft_data.exchange.formats.trl import write_completion, write_language, write_prompt, write_unpaired


def _answers_only(record: Experience) -> None:
    """TRL trains on a whole completion; one with other voices in it must go through `sft-messages`."""
    others = {item["role"] for item in record.messages[record.prompt_messages :]} - {"assistant"}
    if others:
        voices = " and ".join(sorted(others))
        raise RowError(
            f"the completion holds messages of the {voices}, which would be trained on; "
            "write it as sft-messages and train with assistant_only_loss"
        )


def write_sft(record: Experience, choices: Choices) -> Row:
    """Prompt and completion; the completion is what the assistant said and nothing else."""
    _answers_only(record)
    return without(write_completion(record, choices), "metadata")


def write_sft_messages(record: Experience, choices: Choices) -> Row:
    """All messages, for `assistant_only_loss`."""
    return without(write_language(record, choices), "metadata")


def write_dpo(record: PreferencePair, choices: Choices) -> Row:
    """Prompt, chosen and rejected, the prompt always in a column of its own."""
    return explicit(without(write_preference(record, choices), "metadata"))


def write_kto(record: Experience, choices: Choices) -> Row:
    """Prompt, completion and label."""
    _answers_only(record)
    return without(write_unpaired(record, choices), "metadata")


def write_grpo(record: Task, choices: Choices) -> Row:
    """The prompt, with the answer and the metadata, which GRPO hands to its reward functions."""
    return {"answer": None, **write_prompt(record, choices)}


SFT = Format(
    "sft", ("prompt, completion",), write=write_sft, tables=("experiences",), flat=True, training=True
)
SFT_MESSAGES = Format(
    "sft-messages", ("messages",), write=write_sft_messages, tables=("experiences",), training=True
)
DPO = Format(
    "dpo",
    ("prompt, chosen, rejected; from stored preferences, or mined from groups: best against worst reward",),
    write=write_dpo,
    tables=("preferences", "experiences"),
    flat=True,
    training=True,
)
KTO = Format(
    "kto", ("prompt, completion, label",), write=write_kto, tables=("experiences",), flat=True, training=True
)
GRPO = Format(
    "grpo", ("prompt, answer, metadata",), write=write_grpo, tables=("tasks",), flat=True, training=True
)
