"""A recipe as the type of what its mode has, or None where its mode does not have it."""

from __future__ import annotations

from rft_data.recipe.modes import (
    EvalRecipe,
    ExploreRecipe,
    ExplorerRecipe,
    OperatorRecipe,
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
