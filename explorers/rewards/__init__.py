"""Rewards of completions, in this process or in killable children."""
