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
    """With tasks."""
    return recipe if isinstance(recipe, TasksRecipe) else None


def with_model(recipe: Recipe) -> RunRecipe | None:
    """A run on a model."""
    return recipe if isinstance(recipe, RunRecipe) else None


def with_explorers(recipe: Recipe) -> ExplorerRecipe | None:
    """With explorers, that train or are measured."""
    return recipe if isinstance(recipe, PlayingRecipe | EvalRecipe) else None


def with_reinforcement(recipe: Recipe) -> TrainingRecipe | None:
    """With a stage that trains by reinforcement."""
    return recipe if isinstance(recipe, OnlineRecipe | TrainRecipe) else None


def with_operators(recipe: Recipe) -> OperatorRecipe | None:
    """With operators that judge groups."""
    return recipe if isinstance(recipe, OnlineRecipe | ExploreRecipe | TrainRecipe) else None


def that_explores_and_trains(recipe: Recipe) -> OnlineRecipe | None:
    """With explorers and a stage that trains on what they explore."""
    return recipe if isinstance(recipe, OnlineRecipe) else None
