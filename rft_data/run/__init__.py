"""One run from its recipe to its summary. Each mode of a recipe is one file."""
