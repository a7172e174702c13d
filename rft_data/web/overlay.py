"""The tokens of an experience, coloured by what is known of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from rft_data.core.stored_rows import ExperienceRow, SpanRow

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_TOKENS = 4_000
"""Tokens that are shown, from the first sampled one on."""
_LEVELS = 8
_COLOURS = 6
_LEAST_NATS = 0.01
"""A distance of trainer and engine that is as dark as can be only if it is at least so large."""


class Overlay(StrEnum):
    """The quantity that colours the tokens."""

    PROBABILITY = "probability"
    """The darker, the less sure the policy was."""
    ADVANTAGE = "advantage"
    """Green: above 0, red: below; the darker, the further."""
    TEACHER = "teacher"
    """The darker, the further the teacher's logprob is from the policy's."""
    TRAINER = "trainer"
    """The darker, the further the trainer's logprob is from the engine's, next to the row's largest."""
    ENTROPY = "entropy"
    """The darker, the less sure the policy was of what comes next, by the trainer."""
    VERSION = "version"
    """One colour for each stretch that one policy version sampled."""
    MASK = "mask"
    """Dark: sampled by the policy, and so part of a loss."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a row."""

    text: str
    style: str
    """Classes of its colour."""
    title: str
    """Facts about it, in words."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Stored figures of the tokens of a row, T values each; None where they are not stored."""

    mask: Sequence[int]
    logprobs: Sequence[float] | None
    teacher: Sequence[float] | None
    advantage: Sequence[float] | None
    """One value, or T."""
    spans: Sequence[SpanRow]
    first: int = 0
    """Place of the first token that the trainer's values are of."""
    trained: Sequence[float] = ()
    """The trainer's logprobs, from `first` on; empty where none are stored."""
    entropies: Sequence[float] = ()

    def known(self) -> list[Overlay]:
        """The overlays for which something is stored."""
        there = {
            Overlay.PROBABILITY: self.logprobs is not None,
            Overlay.ADVANTAGE: self.advantage is not None,
            Overlay.TEACHER: self.teacher is not None,
            Overlay.TRAINER: bool(self.trained) and self.logprobs is not None,
            Overlay.ENTROPY: bool(self.entropies),
            Overlay.VERSION: bool(self.spans),
            Overlay.MASK: True,
        }
        return [overlay for overlay, stored in there.items() if stored]

    def logprob(self, place: int) -> float | None:
        """Logprob of a sampled token."""
        return float(self.logprobs[place]) if self.logprobs is not None and self.mask[place] else None

    def given(self, place: int) -> float | None:
        """The advantage of a sampled token."""
        if self.advantage is None or not self.mask[place]:
            return None
        return float(self.advantage[place if len(self.advantage) > 1 else 0])

    def taught(self, place: int) -> float | None:
        """How much surer the teacher was of a sampled token, nats."""
        own = self.logprob(place)
        return None if own is None or self.teacher is None else float(self.teacher[place]) - own

    def moved(self, place: int) -> float | None:
        """How much surer the trainer was of a sampled token than the engine, nats."""
        own, trained = self.logprob(place), self._by_trainer(self.trained, place)
        return None if own is None or trained is None else trained - own

    def entropy(self, place: int) -> float | None:
        """Entropy of the policy at a sampled token, in nats."""
        return self._by_trainer(self.entropies, place)

    def _by_trainer(self, values: Sequence[float], place: int) -> float | None:
        there = self.mask[place] and 0 <= place - self.first < len(values)
        return float(values[place - self.first]) if there else None

    def span(self, place: int) -> int | None:
        """The number of the stretch that holds the token."""
        return next(
            (number for number, one in enumerate(self.spans) if one["start"] <= place < one["end"]), None
        )


def facts(
    row: ExperienceRow, advantage: Sequence[float] | None, by_trainer: Mapping[str, Sequence[float]]
) -> Facts:
    """Stored values of the tokens of a whole row; `by_trainer`: what `trained_tokens` gives."""
    length = len(row["token_ids"] or [])
    mask = row["action_mask"] or [0] * length
    return Facts(
        mask,
        row["logprobs"],
        row["teacher_logprobs"],
        advantage,
        row["version_spans"] or [],
        row["prompt_length"],
        by_trainer.get("logprobs", ()),
        by_trainer.get("entropies", ()),
    )


def tokens(
    ids: Sequence[int], prompt_length: int, known: Facts, overlay: Overlay, tokenizer: Tokenizer | None
) -> list[Token]:
    """The tokens of a row, at most MOST_TOKENS; empty where it has none."""
    start = max(0, prompt_length - 200)
    places = range(start, min(len(ids), start + MOST_TOKENS))
    texts = _texts(ids[start : places.stop], tokenizer)
    value = known.moved if overlay == Overlay.TRAINER else known.given
    largest = max((abs(value(place) or 0.0) for place in places), default=0.0)
    return [
        Token(text, _style(known, overlay, place, largest), _title(known, place, ids[place]))
        for place, text in zip(places, texts, strict=True)
    ]


def _style(known: Facts, overlay: Overlay, place: int, largest: float) -> str:
    sampled = "s " if known.mask[place] else ""
    match overlay:
        case Overlay.PROBABILITY:
            return f"{sampled}l{_level(known.logprob(place))}"
        case Overlay.TEACHER:
            return f"{sampled}l{_level(-abs(known.taught(place) or 0.0))}"
        case Overlay.ADVANTAGE:
            given = known.given(place) or 0.0
            depth = round(_LEVELS * abs(given) / largest) if largest and math.isfinite(given) else 0
            return f"{sampled}{'good' if given > 0 else 'bad'} l{depth}"
        case Overlay.TRAINER:
            depth = round(_LEVELS * abs(known.moved(place) or 0.0) / max(largest, _LEAST_NATS))
            return f"{sampled}l{depth}"
        case Overlay.ENTROPY:
            return f"{sampled}l{_level(-(known.entropy(place) or 0.0))}"
        case Overlay.VERSION:
            span = known.span(place)
            return sampled + ("l0" if span is None else f"v{span % _COLOURS}")
        case Overlay.MASK:
            return f"{sampled}l{4 if known.mask[place] else 0}"


def _level(logprob: float | None) -> int:
    """0 for probability 1, to 8 below about 0.1 %."""
    if logprob is None or not math.isfinite(logprob):
        return 0
    return int(np.clip(round(-logprob / math.log(1000) * _LEVELS), 0, _LEVELS))


def _title(known: Facts, place: int, token: int) -> str:
    parts = [f"token {place}, id {token}"]
    logprob, taught, given, span = (
        known.logprob(place),
        known.taught(place),
        known.given(place),
        known.span(place),
    )
    if logprob is not None:
        parts.append(f"probability {math.exp(logprob):.4g}, logprob {logprob:.4f}")
    if taught is not None:
        parts.append(f"teacher {taught:+.4f} nats")
    if (moved := known.moved(place)) is not None:
        parts.append(f"trainer {moved:+.4f} nats")
    if (entropy := known.entropy(place)) is not None:
        parts.append(f"entropy {entropy:.4f} nats")
    if given is not None:
        parts.append(f"advantage {given:+.4g}")
    if span is not None:
        parts.append(f"policy version {known.spans[span]['version']}")
    if not known.mask[place]:
        parts.append("in no loss")
    return "; ".join(parts)


def _texts(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    """Text that each token adds; its number where no tokenizer is known."""
    if tokenizer is None:
        return [f"{one} " for one in ids]
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=False)
    return [stream.step(tokenizer, one) or "" for one in ids]
