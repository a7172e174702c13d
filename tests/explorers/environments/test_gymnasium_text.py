"""Real environments of Gymnasium as text."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from explorers.environments.gymnasium_text import GymnasiumText
from explorers.environments.making import environment_maker
from rft_data.core.errors import RecipeError, UnknownComponentError
from rft_data.core.rows import Task

LAKE = {"left": 0, "down": 1, "right": 2, "up": 3}
TASK = Task("lake", ({"role": "user", "content": "Cross it."},), metadata={"seed": 4})


def lake(**args: Any) -> GymnasiumText:
    made = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi", **args)
    return GymnasiumText(made, actions=LAKE)


def test_frozen_lake_is_crossed_by_words() -> None:
    env = lake()
    start = env.reset(TASK)
    assert start.text == "[S]FFF\nFHFH\nFFFH\nHFFG"
    shown = [start]
    for reply in ["down", "I go DOWN now.", "right? no: right", "down", "right", "Right."]:
        shown.append(env.step(env.action(reply)))
    assert [one.reward for one in shown] == [0, 0, 0, 0, 0, 0, 1]
    assert [one.done for one in shown] == [False] * 6 + [True]
    assert shown[-1].text == "  (Right)\nSFFF\nFHFH\nFFFH\nHFF[G]"
    assert len({one.state for one in shown}) == 7


def test_a_state_has_one_key_however_it_was_reached() -> None:
    env = lake()
    start = env.reset(TASK)
    env.step(env.action("right"))
    back = env.step(env.action("left"))
    assert back.text != start.text
    assert back.state == start.state


@pytest.mark.parametrize("reply", ["", "upwards", "jump", "downright"])
def test_a_reply_without_an_action_has_none(reply: str) -> None:
    assert lake().action(reply) is None


def test_the_pattern_says_where_an_action_stands() -> None:
    env = GymnasiumText(gymnasium.make("FrozenLake-v1"), actions=LAKE, pattern=r"move:\s*(\w+)")
    assert env.action("up is bad, Move: down") == 1
    assert env.action("down") is None
    assert env.action("move: jump") is None


def test_blackjack_takes_integers_and_shows_its_observation() -> None:
    env = GymnasiumText(gymnasium.make("Blackjack-v1"))
    first, again = env.reset(TASK), env.reset(TASK)
    assert first == again
    hand, dealer, ace = eval(first.text)  # noqa: S307 - a JSON list of integers
    assert (4 <= hand <= 21, 1 <= dealer <= 10, ace in (0, 1)) == (True, True, True)
    assert (env.action("I take 1"), env.action("0"), env.action("7"), env.action("stick")) == (
        1,
        0,
        None,
        None,
    )
    end = env.step(env.action("0"))
    assert end.done
    assert end.reward in (-1.0, 0.0, 1.0, 1.5)
    assert env.reset(Task("lake", TASK.messages)) == env.reset(Task("lake", TASK.messages))


class Echo(gymnasium.Env):
    """Takes text or numbers."""

    render_mode = None

    def __init__(self, space: gymnasium.Space) -> None:
        self.action_space = space
        self.observation_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        return f"seed {seed}, options {options}", {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return {"said": np.asarray([1, 2]), "was": action}, 0.5, False, True, {}


def test_text_and_arrays_are_actions_too() -> None:
    said = GymnasiumText(Echo(gymnasium.spaces.Text(20)))
    assert said.action("  hello \n") == "hello"
    assert said.action("x" * 21) is None
    assert said.step("hello").text == '{"said": [1, 2], "was": "hello"}'
    assert said.step("hello").done
    box = GymnasiumText(Echo(gymnasium.spaces.Box(-1, 1, (2,))), pattern=r"\[.*\]")
    assert box.action("so: [0.5, -1]").tolist() == [0.5, -1.0]
    assert [box.action(text) for text in ("[0.5]", "[5, 0]", "[a]", "nothing")] == [None] * 4


def test_a_task_says_how_its_environment_begins() -> None:
    task = Task("echo", TASK.messages, metadata={"seed": 7, "options": {"map": "8x8"}})
    assert GymnasiumText(Echo(gymnasium.spaces.Text(5))).reset(task).text == "seed 7, options {'map': '8x8'}"


def test_spaces_and_rules_that_no_text_leads_to_are_errors() -> None:
    with pytest.raises(RecipeError, match=r"actions are Tuple.*ActionWrapper"):
        GymnasiumText(Echo(gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)])))
    with pytest.raises(RecipeError, match=r"'actions' has \{'jump': 9\}"):
        GymnasiumText(gymnasium.make("FrozenLake-v1"), actions={"jump": 9})
    with pytest.raises(RecipeError, match=r"pattern '\('"):
        GymnasiumText(gymnasium.make("FrozenLake-v1"), pattern="(")


def test_environments_are_made_by_id_or_import_path() -> None:
    assert environment_maker("FrozenLake-v1", {"map_name": "8x8"})().wanted == "an action of Discrete(4)"
    mine = f"{__file__}:Echo"
    made = environment_maker(mine, {"space": gymnasium.spaces.Discrete(3)})()
    assert made.wanted == "an action of Discrete(3)"
    with pytest.raises(RecipeError, match=r"neither a subclass of gymnasium\.Env"):
        environment_maker(f"{__file__}:lake", {})
    with pytest.raises(UnknownComponentError, match="has no 'Ecko'"):
        environment_maker(f"{__file__}:Ecko", {})
