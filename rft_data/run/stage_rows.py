"""Whether a buffer holds what a stage that trains on stored rows would take of it."""

from __future__ import annotations

from rft_data.buffer import Buffer
from rft_data.core.errors import TrainingError
from rft_data.core.lookup import need
from rft_data.recipe.offline import AnyOfflineStage, HeldoutPairs, KtoStage, SftStage


def require_stage_rows(stage: AnyOfflineStage, buffer: Buffer) -> None:
    """Check that a stage finds a row or a pair to train on.

    Raises: RecipeError for a filter that is not valid; TrainingError saying what the buffer has.
    """
    need("trl", "train", "training")
    from trainers.offline.stored_pairs import PairChoice, require_pairs
    from trainers.offline.stored_rows import RowChoice, any_scored, require_rows

    given = {} if stage.data is None else stage.data.model_dump(exclude={"threshold"})
    if not isinstance(stage, SftStage | KtoStage):
        require_pairs(buffer, PairChoice(**given))
        return
    choice = RowChoice(**given)
    require_rows(buffer, choice)
    is_scored = isinstance(stage, KtoStage) or choice.min_reward is not None
    if not is_scored or choice.feedback is not None:
        return
    if not any_scored(buffer, choice):
        raise TrainingError(
            f"'{stage.algorithm}' chooses rows by their score, and none of those that its 'data' lets "
            "through has a reward: import rows with a label ('label: COLUMN', format trl-unpaired), score "
            "them (rft data run), or name a feedback key ('data.feedback')."
        )


def require_heldout(heldout: HeldoutPairs, buffer: Buffer) -> None:
    """Check that there are pairs to measure on. Raises: TrainingError saying what the buffer has."""
    if not heldout.measure:
        return
    from trainers.offline.stored_pairs import PairChoice, require_pairs

    given = heldout.model_dump(exclude={"fraction", "limit", "measure"})
    try:
        require_pairs(buffer, PairChoice(**given))
    except TrainingError as err:
        raise TrainingError(
            "'heldout' measures how often a model tells the better of two answers, for which "
            f"there must be preference pairs: {err} Or write 'measure: false', which only keeps the "
            "prompts out of every stage."
        ) from err
