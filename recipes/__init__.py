"""Recipes that ship and run, and the small functions they name."""
