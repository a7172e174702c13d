"""Sections of the stages that train on what the buffer holds, and of the pairs that are held out.

Filters are checked here, against the schema; whether anything stored fits is seen when the run starts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from rft_data.core.errors import RecipeError
from rft_data.core.filters import parse_text
from rft_data.core.schema import EXPERIENCES, PREFERENCES
from rft_data.core.words import PairsFrom
from rft_data.recipe.section import Section

TrainedSource = Literal["rollout", "import", "expert"]


Lora = Annotated[dict[str, object] | None, Field(exclude_if=lambda given: given is None)]
"""Fields of PEFT's LoraConfig; a saved recipe without has no such key, so that its hash stays as it was."""


class RowsSection(Section):
    """The stored experiences that a stage trains on. Evaluation and probe rows are never among them."""

    run: str | None = None
    """Only this run's; left out: those of every run in the buffer."""
    sources: list[TrainedSource] = Field(default=["rollout", "import", "expert"], min_length=1)
    """Kinds of rows: sampled by a policy, imported, or worked solutions of experts."""
    where: str | None = None
    """A filter, for example `finish_reason = 'stop' and version_min >= 3`; see docs/reading.md."""
    feedback: str | None = None
    """A key of the `feedback` table: its newest value is the row's score, its reward where there is none."""

    @model_validator(mode="after")
    def _readable(self) -> RowsSection:
        _check_filter(self.where, "experiences")
        return self


class SftRows(RowsSection):
    """The stored experiences that are imitated."""

    min_reward: float | None = None
    """Only rows whose score is at least this."""
    best_of: int | None = Field(default=None, ge=1)
    """Only so many of each group, by score; of equal ones those stored first."""


class KtoRows(RowsSection):
    """The stored experiences that are judged one by one; those without a score are left out."""

    threshold: float = 0.5
    """A row is desirable when its score is at least this."""


class PairsSection(Section):
    """The preference pairs that a stage trains on."""

    pairs: PairsFrom = "stored"
    """The table `preferences`, or the best and the worst row of each group."""
    run: str | None = None
    """Mined: only this run's groups."""
    where: str | None = None
    """A filter: over `preferences` where pairs are stored, over `experiences` where they are mined."""
    margin: float = Field(default=0.0, ge=0)
    """Mined: the two rewards differ by more than this."""

    @model_validator(mode="after")
    def _coherent(self) -> PairsSection:
        _check_filter(self.where, "experiences" if self.pairs == "mined" else "preferences")
        if self.pairs == "stored" and (self.run is not None or self.margin):
            raise ValueError(
                "'run' and 'margin' choose what pairs are mined from; stored pairs are chosen by 'where', "
                "for example source = 'human'"
            )
        return self


_KEPT_OUT = ("fraction", "measure")
"""Fields of `HeldoutPairs` that choose no pairs."""


class HeldoutPairs(PairsSection):
    """Prompts that nothing is trained on, and their pairs: preference accuracy is measured on these."""

    fraction: float = Field(gt=0, lt=1)
    """Share of prompts, by content hash: the same prompts in every run, and those of a taskset of that
    `heldout`. No stage trains on any row with such a prompt."""
    limit: int = Field(default=500, ge=1)
    """At most so many pairs are measured, spread evenly."""
    measure: bool = Field(default=True, exclude_if=lambda given: given)
    """False: the prompts are kept out of every stage, and nothing is measured, so no pairs are needed."""

    @model_validator(mode="after")
    def _measures(self) -> HeldoutPairs:
        fields = {name: one.default for name, one in type(self).model_fields.items() if name not in _KEPT_OUT}
        unread = [name for name, default in fields.items() if getattr(self, name) != default]
        if unread and not self.measure:
            raise ValueError(f"'measure: false' measures no pairs, so nothing reads {', '.join(unread)}")
        return self


class SftStage(Section):
    """Supervised fine-tuning on stored experiences."""

    algorithm: Literal["sft"]
    """Supervised fine-tuning: raises the likelihood of stored completions."""
    data: SftRows | None = None
    """Left out: the solutions that this run's `experts` made."""
    trl: dict[str, object] = Field(default_factory=dict)
    """Passed through to TRL's SFTConfig."""
    lora: Lora = None
    """Passed through to PEFT's LoraConfig: only an adapter is trained; the stage's model has it merged in."""


class DpoStage(Section):
    """Direct preference optimisation (arXiv:2305.18290) or one of TRL's other losses on pairs."""

    algorithm: Literal["dpo"]
    """Trains on preference pairs, by the loss that `trl.loss_type` names."""
    data: PairsSection = Field(default_factory=PairsSection)
    """Which pairs to train on; by default every stored one."""
    trl: dict[str, object] = Field(default_factory=dict)
    """Passed through to TRL's DPOConfig."""
    lora: Lora = None
    """Passed through to PEFT's LoraConfig: only an adapter is trained; the stage's model has it merged in."""


class KtoStage(Section):
    """Kahneman-Tversky optimisation (arXiv:2402.01306): answers that are desirable or not, no pairs."""

    algorithm: Literal["kto"]
    """Trains on single answers, each labelled desirable or not."""
    data: KtoRows = Field(default_factory=KtoRows)
    """The rows to train on, and the score from which one is desirable."""
    trl: dict[str, object] = Field(default_factory=dict)
    """Passed through to TRL's KTOConfig."""
    lora: Lora = None
    """Passed through to PEFT's LoraConfig: only an adapter is trained; the stage's model has it merged in."""


class RewardModelStage(Section):
    """A reward model out of the policy before it, on pairs; the policy itself stays as it is."""

    algorithm: Literal["reward_model"]
    """Trains a model that scores answers, from preference pairs."""
    data: PairsSection = Field(default_factory=PairsSection)
    """Which pairs to train on; by default every stored one."""
    trl: dict[str, object] = Field(default_factory=dict)
    """Passed through to TRL's RewardConfig."""
    lora: Lora = None
    """Passed through to PEFT's LoraConfig: an adapter and the score are trained; it is merged in."""


AnyOfflineStage = SftStage | DpoStage | KtoStage | RewardModelStage
OfflineStage = Annotated[AnyOfflineStage, Field(discriminator="algorithm")]


def _check_filter(where: str | None, table: Literal["experiences", "preferences"]) -> None:
    """Raises: ValueError when the text is no filter over that table."""
    if where is None:
        return
    try:
        parse_text(where, EXPERIENCES if table == "experiences" else PREFERENCES)
    except RecipeError as err:
        raise ValueError(f"'where' over {table}: {err}") from err
