"""A run whose rewards are all equal is told so, with what to look at."""

from rft_data.run.watch.flat_rewards import FlatRewards


def test_equal_rewards_of_three_steps_are_a_warning_once_and_again_after_fifty() -> None:
    flat, groups = FlatRewards(), [(0.0, 0.0), (0.0, None)]
    warned = [step for step in range(1, 101) if flat.after(groups)]
    assert warned == [3, 50, 100]
    assert "every rollout of the last 3 steps has the reward 0: " in _third(FlatRewards(), 0.0)
    assert "exact_answer wants '#### 56000'" in _third(FlatRewards(), 1.0)


def test_a_step_without_rollouts_changes_nothing_and_one_other_reward_ends_it() -> None:
    flat = FlatRewards()
    steps = [[(0.0,)], [(0.0,)], [], [(0.0,)], [(0.0, 1.0)], [(1.0,)], [(0.0,)], [(0.0,)]]
    assert [bool(flat.after(step)) for step in steps] == [False, False, False, True, *[False] * 4]


def _third(flat: FlatRewards, reward: float) -> str:
    return [flat.after([(reward, reward)]) for _ in range(3)][-1]
