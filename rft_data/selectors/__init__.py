"""Task selectors: which tasks are explored next."""

from rft_data.selectors.difficulty import Difficulty
from rft_data.selectors.nothing import Nothing
from rft_data.selectors.shuffle import Shuffle

__all__ = ["Difficulty", "Nothing", "Shuffle"]
