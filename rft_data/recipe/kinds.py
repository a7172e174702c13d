"""A recipe as the type of what its mode has, or None where its mode does not have it."""

from __future__ import annotations

from rft_data.recipe.modes import (
    DataRecipe,
    EvalRecipe,
    ExploreRecipe,
    ExplorerRecipe,
    OfflineRecipe,
    OperatorRecipe,
    StagedRecipe,
    TrainingRecipe,
    TrainRecipe,
)
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.recipe import PlayingRecipe, Recipe, RunRecipe, TasksRecipe


def with_tasks(recipe: Recipe) -> TasksRecipe | None:
    """The recipe, if its mode reads tasks."""
    return recipe if isinstance(recipe, TasksRecipe) else None


def with_model(recipe: Recipe) -> RunRecipe | None:
    """The recipe, if its mode is a run on a model."""
    return recipe if isinstance(recipe, RunRecipe) else None


def with_explorers(recipe: Recipe) -> ExplorerRecipe | None:
    """The recipe, if its mode has explorers, which train or are measured."""
    return recipe if isinstance(recipe, PlayingRecipe | EvalRecipe) else None


def with_reinforcement(recipe: Recipe) -> TrainingRecipe | None:
    """The recipe, if it has a stage that trains by reinforcement."""
    return recipe if isinstance(recipe, OnlineRecipe | TrainRecipe) else None


def with_operators(recipe: Recipe) -> OperatorRecipe | None:
    """The recipe, if it has operators that judge groups."""
    return recipe if isinstance(recipe, OnlineRecipe | ExploreRecipe | TrainRecipe) else None


def that_explores_and_trains(recipe: Recipe) -> OnlineRecipe | None:
    """The recipe, if it has explorers and a stage that trains on what they explore."""
    return recipe if isinstance(recipe, OnlineRecipe) else None


def with_offline_stages(recipe: Recipe) -> StagedRecipe | None:
    """The recipe, if its mode may have stages that train on stored rows."""
    return recipe if isinstance(recipe, OnlineRecipe | OfflineRecipe) else None


def that_only_trains_on_stored(recipe: Recipe) -> OfflineRecipe | None:
    """The recipe, if all its stages train on stored rows."""
    return recipe if isinstance(recipe, OfflineRecipe) else None


def that_trains_on_stored_groups(recipe: Recipe) -> TrainRecipe | None:
    """The recipe, if it trains by reinforcement on what another run explored."""
    return recipe if isinstance(recipe, TrainRecipe) else None


def that_only_explores(recipe: Recipe) -> ExploreRecipe | None:
    """The recipe, if it explores with a fixed policy."""
    return recipe if isinstance(recipe, ExploreRecipe) else None


def that_measures(recipe: Recipe) -> EvalRecipe | None:
    """The recipe, if it measures models."""
    return recipe if isinstance(recipe, EvalRecipe) else None


def that_cleans_data(recipe: Recipe) -> DataRecipe | None:
    """The recipe, if it has no model."""
    return recipe if isinstance(recipe, DataRecipe) else None
