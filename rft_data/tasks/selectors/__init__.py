"""Task selectors: which tasks are explored next. `make.py` lists them by name."""

from rft_data.tasks.selectors.base import TaskSelector
from rft_data.tasks.selectors.difficulty import Difficulty
from rft_data.tasks.selectors.interfaces import NoTasksError, OpenSelector
from rft_data.tasks.selectors.make import SELECTORS, check_selector, make_selector, needed_metadata
from rft_data.tasks.selectors.nothing import Nothing
from rft_data.tasks.selectors.shuffle import Shuffle

__all__ = [
    "SELECTORS",
    "Difficulty",
    "NoTasksError",
    "Nothing",
    "OpenSelector",
    "Shuffle",
    "TaskSelector",
    "check_selector",
    "make_selector",
    "needed_metadata",
]
