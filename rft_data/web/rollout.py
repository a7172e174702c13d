"""One experience as a person reads it: its conversation, and its tokens with what is known of each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rft_data.buffer import Buffer
from rft_data.reading.lineage import Judgement

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_TOKENS = 4_000
"""Tokens that are shown, from the first sampled one on."""
_LEVELS = 8


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a row."""

    text: str
    sampled: bool
    """Whether the policy sampled it."""
    level: int
    """How sure the policy was, 0 (probability 1) to 8 (below about 0.1 %); 0 for tokens of others."""
    title: str
    """What is known of it, in words."""
    version: int | None
    """Policy version that sampled it."""


def tokens(
    row: Mapping[str, Any], advantage: Sequence[float] | None, tokenizer: Tokenizer | None
) -> list[Token]:
    """The tokens of a row with their probability, advantage and version; empty where it has none.

    Args: row: of `experiences`, whole; advantage: one value, or one for each token.
    """
    ids: list[int] = row["token_ids"] or []
    start = max(0, int(row["prompt_length"]) - 200)
    stop = min(len(ids), start + MOST_TOKENS)
    texts = _texts(ids[start:stop], tokenizer)
    mask, logprobs = row["action_mask"] or [0] * len(ids), row["logprobs"]
    spans = row["version_spans"] or []
    found = []
    for place, text in zip(range(start, stop), texts, strict=True):
        sampled = bool(mask[place])
        logprob = float(logprobs[place]) if sampled and logprobs is not None else None
        version = next((span["version"] for span in spans if span["start"] <= place < span["end"]), None)
        given = None if advantage is None else advantage[place if len(advantage) > 1 else 0]
        found.append(
            Token(text, sampled, _level(logprob), _title(place, ids[place], logprob, given, version), version)
        )
    return found


def advantage(verdicts: Sequence[Judgement]) -> tuple[float, ...] | None:
    """What the newest pipeline that kept the row gave it."""
    kept = [one.advantage for one in verdicts if one.advantage is not None]
    return kept[-1] if kept else None


def conversation(messages: Sequence[object], prompt: int) -> list[dict[str, str]]:
    """Role, text and tool calls of each message; those after the first `prompt` say so in `sampled`."""
    found = []
    for place, one in enumerate(messages):
        message = one if isinstance(one, Mapping) else {"content": one}
        calls = message.get("tool_calls")
        found.append(
            {
                "role": str(message.get("role", "")),
                "text": _content(message.get("content")),
                "thinking": _content(message.get("reasoning_content")),
                "calls": json.dumps(calls, indent=1, ensure_ascii=False) if calls else "",
                "sampled": "yes" if place >= prompt else "",
            }
        )
    return found


def whole_row(buffer: Buffer, seq: int) -> dict[str, Any]:
    """Every column of one experience; its digest is checked."""
    found: dict[str, Any] = buffer.take([seq]).to_pylist()[0]
    return found


def run_tokenizer(run_dir: Path | None) -> Tokenizer | None:
    """The tokenizer of a run's model; None where its folder has none."""
    if run_dir is None:
        return None
    places = [run_dir / "model", run_dir / "final", *sorted(run_dir.glob("weights/v*"), reverse=True)]
    file = next(
        (folder / "tokenizer.json" for folder in places if (folder / "tokenizer.json").is_file()), None
    )
    if file is None:
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file))


def _texts(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """What each token adds to the text; its number where no tokenizer is known."""
    if tokenizer is None:
        return [f"{one} " for one in ids]
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, one) or "" for one in ids]


def _content(content: object) -> str:
    """The text of a message's content; parts that are no text as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        shown = [
            text if isinstance(text, str) else json.dumps(part, ensure_ascii=False)
            for text, part in zip(texts, content, strict=True)
        ]
        return "\n".join(shown)
    return json.dumps(content, ensure_ascii=False)


def _level(logprob: float | None) -> int:
    if logprob is None or not math.isfinite(logprob):
        return 0
    return int(np.clip(round(-logprob / math.log(1000) * _LEVELS), 0, _LEVELS))


def _title(place: int, token: int, logprob: float | None, given: float | None, version: int | None) -> str:
    parts = [f"token {place}, id {token}"]
    if logprob is not None:
        parts.append(f"probability {math.exp(logprob):.4g}, logprob {logprob:.4f}")
    if given is not None and logprob is not None:
        parts.append(f"advantage {given:+.4g}")
    if version is not None:
        parts.append(f"policy version {version}")
    return "; ".join(parts)
