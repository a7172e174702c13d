"""Training sets for TRL: SFT, DPO, KTO and GRPO prompts. Only written; TRL's own types are for reading.

They never hold evaluation rows, held-out rows or metadata. A row that would train on text which the policy
did not write is left out, with the reason.
"""

from __future__ import annotations

from rft_data.core.errors import RowError
from rft_data.core.rows import Experience, PreferencePair, Task
from rft_data.exchange.formats.preferences import explicit, without, write_preference
from rft_data.exchange.formats.records import Choices, Format, Row
from rft_data.exchange.formats.trl import write_completion, write_language, write_prompt, write_unpaired


def _answers_only(record: Experience) -> None:
    """Refuse a completion with messages of other roles: TRL would train on all of it."""
    others = {item["role"] for item in record.messages[record.prompt_messages :]} - {"assistant"}
    if others:
        roles = " and ".join(sorted(others))
        raise RowError(
            f"the completion holds messages of the {roles}, which would be trained on; "
            "write it as sft-messages and train with assistant_only_loss"
        )


def write_sft(record: Experience, choices: Choices) -> Row:
    """Prompt and completion; the completion holds messages of the assistant only."""
    _answers_only(record)
    return without(write_completion(record, choices), "metadata")


def write_sft_messages(record: Experience, choices: Choices) -> Row:
    """All messages, for `assistant_only_loss`."""
    return without(write_language(record, choices), "metadata")


def write_dpo(record: PreferencePair, choices: Choices) -> Row:
    """Prompt, chosen and rejected; the prompt is always a column."""
    return explicit(without(write_preference(record, choices), "metadata"))


def write_kto(record: Experience, choices: Choices) -> Row:
    """Prompt, completion and label."""
    _answers_only(record)
    return without(write_unpaired(record, choices), "metadata")


def write_grpo(record: Task, choices: Choices) -> Row:
    """The prompt, with the answer and the metadata that GRPO hands to its reward functions."""
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
