"""Recipes: typed YAML. Pydantic lives here and nowhere else."""

from rft_data.recipe.load import load_recipe
from rft_data.recipe.recipe import Recipe

__all__ = ["Recipe", "load_recipe"]
