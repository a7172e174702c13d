"""rft-data from Python: the names below are what a program needs; docs/python.md has a line on each.

Importing this package loads none of them, and so neither torch nor vllm, trl, ray or data_juicer. A name is
loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from rft_data.core.version import __version__

if TYPE_CHECKING:
    from rft_data.buffer import Buffer
    from rft_data.core.engine import Completion, Engine, Sampling
    from rft_data.core.errors import RftError, RowError, StalledError
    from rft_data.core.filters import parse_filter, parse_text
    from rft_data.core.groups import GroupResult
    from rft_data.core.protocols import Selector
    from rft_data.core.rows import (
        Experience,
        Feedback,
        PreferencePair,
        Task,
        TaskKey,
        WeightRef,
        experience_id_of,
    )
    from rft_data.core.schema import EXPERIENCES
    from rft_data.core.trajectory import Trajectory
    from rft_data.core.words import UnscoredCause
    from rft_data.core.workflow import Reward, RolloutContext, Unscored, Workflow
    from rft_data.exchange.formats import export, import_into
    from rft_data.placement.hub import HubClient, HubServer
    from rft_data.reading.lineage import lineage, trained_on
    from rft_data.reading.query import query
    from rft_data.reading.run_metrics import run_metrics
    from rft_data.reading.search import embed, index_text, search_text, similar
    from rft_data.recipe import Recipe, load_recipe
    from rft_data.recipe.algorithms import Algorithm
    from rft_data.run.start import run_recipe
    from rft_data.sampler import Candidate, Moment
    from rft_data.sampler import Policy as SamplerPolicy
    from rft_data.tasks.selectors import TaskSelector

_PLACES = {
    # run a recipe
    "load_recipe": "rft_data.recipe:load_recipe",
    "run_recipe": "rft_data.run.start:run_recipe",
    "Recipe": "rft_data.recipe:Recipe",
    # a buffer: open it, bring rows in and out, ask it
    "Buffer": "rft_data.buffer:Buffer",
    "import_into": "rft_data.exchange.formats:import_into",
    "export": "rft_data.exchange.formats:export",
    "HubServer": "rft_data.placement.hub:HubServer",
    "HubClient": "rft_data.placement.hub:HubClient",
    "parse_filter": "rft_data.core.filters:parse_filter",
    "parse_text": "rft_data.core.filters:parse_text",
    "EXPERIENCES": "rft_data.core.schema:EXPERIENCES",
    "query": "rft_data.reading.query:query",
    "run_metrics": "rft_data.reading.run_metrics:run_metrics",
    "index_text": "rft_data.reading.search:index_text",
    "search_text": "rft_data.reading.search:search_text",
    "embed": "rft_data.reading.search:embed",
    "similar": "rft_data.reading.search:similar",
    "lineage": "rft_data.reading.lineage:lineage",
    "trained_on": "rft_data.reading.lineage:trained_on",
    # rows
    "Task": "rft_data.core.rows:Task",
    "TaskKey": "rft_data.core.rows:TaskKey",
    "Experience": "rft_data.core.rows:Experience",
    "experience_id_of": "rft_data.core.rows:experience_id_of",
    "PreferencePair": "rft_data.core.rows:PreferencePair",
    "Feedback": "rft_data.core.rows:Feedback",
    "GroupResult": "rft_data.core.groups:GroupResult",
    # errors
    "RftError": "rft_data.core.errors:RftError",
    "RowError": "rft_data.core.errors:RowError",
    "StalledError": "rft_data.core.errors:StalledError",
    # parts of your own, named in a recipe by import path
    "Reward": "rft_data.core.workflow:Reward",
    "Unscored": "rft_data.core.workflow:Unscored",
    "UnscoredCause": "rft_data.core.words:UnscoredCause",
    "Trajectory": "rft_data.core.trajectory:Trajectory",
    "Workflow": "rft_data.core.workflow:Workflow",
    "RolloutContext": "rft_data.core.workflow:RolloutContext",
    "Engine": "rft_data.core.engine:Engine",
    "Sampling": "rft_data.core.engine:Sampling",
    "Completion": "rft_data.core.engine:Completion",
    "WeightRef": "rft_data.core.rows:WeightRef",
    "Selector": "rft_data.core.protocols:Selector",
    "TaskSelector": "rft_data.tasks.selectors:TaskSelector",
    "SamplerPolicy": "rft_data.sampler:Policy",
    "Candidate": "rft_data.sampler:Candidate",
    "Moment": "rft_data.sampler:Moment",
    "Algorithm": "rft_data.recipe.algorithms:Algorithm",
}
"""Name to where it is defined."""

__all__ = [
    "EXPERIENCES",
    "Algorithm",
    "Buffer",
    "Candidate",
    "Completion",
    "Engine",
    "Experience",
    "Feedback",
    "GroupResult",
    "HubClient",
    "HubServer",
    "Moment",
    "PreferencePair",
    "Recipe",
    "Reward",
    "RftError",
    "RolloutContext",
    "RowError",
    "SamplerPolicy",
    "Sampling",
    "Selector",
    "StalledError",
    "Task",
    "TaskKey",
    "TaskSelector",
    "Trajectory",
    "Unscored",
    "UnscoredCause",
    "WeightRef",
    "Workflow",
    "__version__",
    "embed",
    "experience_id_of",
    "export",
    "import_into",
    "index_text",
    "lineage",
    "load_recipe",
    "parse_filter",
    "parse_text",
    "query",
    "run_metrics",
    "run_recipe",
    "search_text",
    "similar",
    "trained_on",
]


def __getattr__(name: str) -> object:
    """Load a name when it is first used (PEP 562)."""
    if name not in _PLACES:
        raise AttributeError(f"module 'rft_data' has no attribute '{name}'")
    module, _, attribute = _PLACES[name].partition(":")
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
