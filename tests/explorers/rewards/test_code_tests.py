"""The reward `code_tests`: verdicts on code by tests of a task, and what is no fault of the code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest

from benchmarks.sandbox.battery import HOST
from explorers.limits import Limits
from explorers.rewards.code_tests import CodeTests
from explorers.rewards.scoring import make_rewards
from explorers.rewards.unit_tests import code_in, same_output
from rft_data.core.errors import RecipeError, RftError, UnknownComponentError
from rft_data.core.rows import Task
from rft_data.core.words import UnscoredCause
from rft_data.core.workflow import Unscored
from tests.processes import children_of, runs
from tests.waiting import wait_for

PROMPT = ({"role": "user", "content": "Write add(a, b)."},)
RIGHT = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
WRONG = "```python\ndef add(a, b):\n    return a - b\n```"
TESTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0"]


def task(answer: str | None = None, **metadata: Any) -> Task:
    return Task("code", PROMPT, answer, metadata=metadata)


def made(**args: Any) -> CodeTests:
    try:
        return CodeTests(**args)
    except RftError as err:
        pytest.skip(f"no sandbox: {err}")


@pytest.fixture(scope="module")
def by_share() -> Iterator[CodeTests]:
    reward = made(score="share")
    yield reward
    reward.close()


def scored(reward: CodeTests, one: Task, completion: str) -> Mapping[str, float]:
    found = reward(one, completion)
    assert not isinstance(found, Unscored), found
    return found


@pytest.mark.slow
def test_the_share_of_tests_that_pass_is_the_reward(by_share: CodeTests) -> None:
    right = scored(by_share, task(tests=TESTS), RIGHT)
    assert right == {"reward": 1.0, "tests": 3, "passed": 3, "failed": 0, "timed_out": 0, "over_limit": 0}
    assert scored(by_share, task(tests=TESTS), WRONG)["reward"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_all_or_nothing_stops_at_the_first_failure() -> None:
    reward = made()
    assert scored(reward, task(tests=TESTS), RIGHT)["reward"] == 1.0
    found = scored(reward, task(tests=TESTS), WRONG)
    assert (found["reward"], found["passed"], found["failed"]) == (0.0, 0, 1)
    reward.close()


def test_programs_are_judged_by_what_they_print(by_share: CodeTests) -> None:
    cases = task(tests=[{"stdin": "2 3\n", "stdout": "5"}, {"stdin": "1 1\n", "stdout": "2 \n\n"}])
    source = "if __name__ == '__main__':\n    print(sum(map(int, input().split())))"
    assert scored(by_share, cases, source)["reward"] == 1.0
    assert scored(by_share, cases, f"{source}\n    raise SystemExit(1)")["reward"] == 0.0


@pytest.mark.parametrize(
    "given",
    [
        {"test_list": TESTS[:1], "test_setup_code": "offset = 0"},
        {"input_output": '{"inputs": ["1 2"], "outputs": ["3"]}'},
        {"answer": TESTS[0]},
    ],
)
def test_tests_in_the_forms_of_known_sets(by_share: CodeTests, given: dict[str, Any]) -> None:
    main = "if __name__ == '__main__':\n    print(add(*map(int, input().split())))"
    body = f"def add(a, b):\n    return a + b\n{main}"
    assert scored(by_share, task(**given), f"```\n{body}\n```")["reward"] == 1.0


@pytest.mark.parametrize(
    ("source", "passed"), [("add() { echo $(($1 + $2)); }", 1), ("add() { echo 4; }", 0)]
)
def test_bash_by_statements(by_share: CodeTests, source: str, passed: int) -> None:
    one = task(tests=['test "$(add 1 2)" = 3'], language="bash")
    assert scored(by_share, one, f"```bash\n{source}\n```")["passed"] == passed


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "import sys\nprint('passed')\nsys.exit()",
        "import sys\nprint(open(sys.argv[0]).read())\nraise SystemExit",
        "def add(a, b): return",
        "this is no code",
        "",
    ],
)
def test_code_that_only_ends_early_passes_nothing(by_share: CodeTests, source: str) -> None:
    assert scored(by_share, task(tests=TESTS), f"```python\n{source}\n```")["passed"] == 0


@pytest.mark.heavy
def test_endless_and_greedy_code_is_the_models_fault() -> None:
    reward = made(score="share", total_s=1.5, limits={"seconds": 0.4, "memory_mb": 96})
    found = scored(reward, task(tests=TESTS[:2]), "while True: pass")
    assert (found["reward"], found["timed_out"]) == (0.0, 2)
    many = task(tests=TESTS * 20)
    found = scored(reward, many, "while True: pass")
    assert (found["timed_out"], found["tests"]) == (60, 60)
    reward.close()
    patient = made(score="share", limits={"memory_mb": 96})
    found = scored(patient, task(tests=TESTS[:1]), "while True: print('x' * 1000)")
    assert found["over_limit"] == 1
    patient.close()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "the task has no tests"),
        ({"tests": []}, "the task has no tests"),
        ({"tests": [{"input": 1}]}, "the task has a test"),
        ({"tests": ["x"], "language": "perl"}, "tests by statements are for python and bash"),
    ],
)
def test_tasks_without_usable_tests_are_unscored(
    by_share: CodeTests, given: dict[str, Any], why: str
) -> None:
    found = by_share(task(**given), RIGHT)
    assert isinstance(found, Unscored)
    assert (found.cause, why in found.reason) == (UnscoredCause.REWARD, True)


@pytest.mark.slow
def test_a_sandbox_that_breaks_down_gives_no_reward_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with children_of(HOST) as started:
        reward = made(score="share")
        assert scored(reward, task(tests=TESTS), RIGHT)["reward"] == 1.0
    monkeypatch.setattr("explorers.rewards.unit_tests._PYTHON", "{parts!r}\nimport time\ntime.sleep(60)")
    [host] = filter(runs, started)  # others tried which sandbox there is
    _kill_amid_a_program(host)
    found = reward(task(tests=TESTS[:1]), RIGHT)
    assert isinstance(found, Unscored)
    assert found.cause == UnscoredCause.INFRASTRUCTURE
    monkeypatch.undo()
    assert scored(reward, task(tests=TESTS), RIGHT)["reward"] == 1.0
    reward.close()


def _kill_amid_a_program(host: int) -> None:
    def kill() -> None:
        wait_for(psutil.Process(host).children)  # its programs are its children
        os.kill(host, signal.SIGKILL)

    threading.Thread(target=kill).start()


@pytest.mark.slow
def test_a_recipe_reward_runs_in_a_child_and_its_parts_are_stored() -> None:
    made().close()
    tests = {"use": "code_tests", "weight": 2.0, "args": {"score": "share", "limits": {"seconds": 2.0}}}
    rewards = make_rewards([tests], Limits(reward_processes=1))
    try:
        right, wrong = rewards.score_all([(task(tests=TESTS), RIGHT), (task(tests=TESTS), WRONG)])
    finally:
        rewards.close()
    assert (right["reward"], right["reward_parts"]["code_tests.passed"]) == (2.0, 3.0)
    assert (wrong["reward_parts"]["code_tests"], wrong["reward_parts"]["code_tests.failed"]) == (
        pytest.approx(1 / 3),
        2.0,
    )


def test_mistakes_in_arguments_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"code_tests\.score is 'some'; wanted 'all' or 'share'"):
        CodeTests(score="some")  # type: ignore[arg-type]
    with pytest.raises(UnknownComponentError, match="did you mean 'python'"):
        CodeTests(language="pyton")


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("no fence", "no fence"),
        ("```\na\n```\n```python\nb\n```\n", "b\n"),
        ("text\n```python\ncut off", "cut off"),
        ("use `x` and\n```sh\nls\n```", "ls\n"),
    ],
)
def test_the_last_block_is_the_code(completion: str, code: str) -> None:
    assert code_in(completion) == code


def test_spaces_at_ends_do_not_count() -> None:
    assert same_output("a \nb\n\n", "a\nb")
    assert not same_output("a\n\nb", "a\nb")
