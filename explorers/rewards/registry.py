"""All built-in rewards by name, and how a reward is made from a name and its arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace

from explorers.rewards.code_tests import CodeTests
from explorers.rewards.contract import RewardKind, reward_kind
from explorers.rewards.countdown import Countdown
from explorers.rewards.group_ranking import GroupRanking
from explorers.rewards.json_schema import JsonSchema
from explorers.rewards.llm_judge import LlmJudge
from explorers.rewards.multiple_choice import MultipleChoice
from explorers.rewards.number import Number
from explorers.rewards.reasoning_gym_score import ReasoningGymScore
from explorers.rewards.regex import Regex
from explorers.rewards.reward_model import RewardModel
from explorers.rewards.reward_server import RewardServer
from explorers.rewards.rubric import Rubric
from explorers.rewards.rules import AnswerFormat, ExactAnswer, Later, MathVerify
from rft_data.core.errors import RecipeError, RftError
from rft_data.core.lookup import lookup

REWARDS: Mapping[str, type] = {
    "exact_answer": ExactAnswer,
    "answer_format": AnswerFormat,
    "math_verify": MathVerify,
    "code_tests": CodeTests,
    "multiple_choice": MultipleChoice,
    "number": Number,
    "regex": Regex,
    "json_schema": JsonSchema,
    "countdown": Countdown,
    "reasoning_gym": ReasoningGymScore,
    "reward_model": RewardModel,
    "reward_server": RewardServer,
    "llm_judge": LlmJudge,
    "rubric": Rubric,
    "group_ranking": GroupRanking,
    "later": Later,
}


def is_trusted(use: str) -> bool:
    """Whether a reward may run in the explorer's own process: only built-ins that say so."""
    return bool(getattr(REWARDS.get(use), "trusted", False))


def make_reward(use: str, args: Mapping[str, object]) -> Callable[..., object]:
    """The built-in reward called `use`, or what `package.module:Name` leads to.

    A class is made with `args`; a function is the reward itself, called with `args` besides.
    Raises: UnknownComponentError, RecipeError when it does not take `args` or cannot be built.
    """
    kind = lookup(use, REWARDS, "reward")
    if not callable(kind):
        raise RecipeError(
            f"reward '{use}' is {kind!r:.100} of type {type(kind).__name__}; name a function or a class."
        )
    try:
        if inspect.isfunction(kind):
            inspect.signature(kind).bind_partial(**args)
            return functools.partial(kind, **args) if args else kind
        made: Callable[..., object] = kind(**args)
    except RftError:
        raise
    except Exception as err:  # a reward's constructor is user code
        raise RecipeError(
            f"reward '{use}' cannot be built with the arguments {dict(args)} ({type(err).__name__}: {err}); "
            "correct its 'args' in the recipe."
        ) from err
    return made


def built_in_kind(use: str) -> RewardKind | None:
    """How a built-in reward is called, told by its class alone; None for a reward of the user's own."""
    known = REWARDS.get(use)
    if known is None:
        return None
    kind = reward_kind(functools.partial(known.__call__, None), use)
    return replace(kind, deadline_s=getattr(known, "deadline_s", None))
