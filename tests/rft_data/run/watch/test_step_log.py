"""A step in one line of the log."""

from rft_data.run.watch.step_log import _shown

NUMBERS = {
    "trainer": {"reward": 0.5, "completions/mean_length": 12.4},
    "sampler": {"lag_max": 1.0},
    "loop": {},
}


def test_a_step_names_both_rewards() -> None:
    shown = _shown({**NUMBERS, "loop": {"rollout_reward": 0.25}}, 4)
    assert shown == "reward 0.500 trained, 0.250 all rollouts  tokens 12  groups 4  staleness 1"


def test_a_run_that_explores_nothing_has_one_reward() -> None:
    assert _shown(NUMBERS, 4) == "reward 0.500 trained  tokens 12  groups 4  staleness 1"
