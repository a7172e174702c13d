"""Programs as workflows: exact rows, rewards from within, typed ends, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from explorers.ledger import Cost
from explorers.limits import Limits
from explorers.meter import Meter, metered
from explorers.rewards.rules import ExactAnswer
from explorers.rewards.scoring import Rewards
from explorers.workflows.make import make_workflow
from explorers.workflows.program_process import own_environment, run_program
from explorers.workflows.rollout_server import RolloutServer
from explorers.workflows.rollouts import Rollouts
from rft_data.core.engine import Completion, Sampling
from rft_data.core.errors import EngineError, RecipeError, RowError
from tests.explorers.workflows.test_worlds import CTX, NONE, TASK, Room, call, play, rows_of
from tests.waiting import wait_for

AGENT = str(Path(__file__).parent / "programs" / "agent.py")
HERE = __name__


def program(what: str, **args: Any) -> dict[str, Any]:
    return {"use": "program", "args": {"command": ["python", AGENT, what], **args}}


@pytest.mark.slow
def test_a_program_of_two_turns_is_one_row_with_its_exact_tokens(tokenizer: Any) -> None:
    played = play(tokenizer, program("two_turns"), "four", "5")
    (row,) = rows_of(played)
    assert (row.reward, row.reward_parts) == (1.0, {"world": 1.0})
    assert [m["role"] for m in row.messages] == ["user", "assistant", "user", "assistant"]
    assert list(row.token_ids or ()) == played[1].seen[1] + played[1].said[1]
    assert sum(row.action_mask or ()) == len(played[1].said[0]) + len(played[1].said[1])
    assert row.metadata["turns"] == 2
    assert row.metadata["environment_state"]["output"] == "the model says 5\n"


@pytest.mark.slow
def test_a_reward_that_is_posted_stands_beside_the_recipes(tokenizer: Any) -> None:
    rewards = Rewards({"exact_answer": 2.0}, {"exact_answer": ExactAnswer()})
    task = replace(TASK, answer="#### 5")
    (row,) = rows_of(play(tokenizer, program("posted"), "#### 5", task=task, rewards=rewards))
    assert row.reward == 2.5
    assert row.reward_parts == {"exact_answer": 1.0, "world": 0.5, "world.form": 1.0}


@pytest.mark.slow
def test_a_tree_of_calls_trains_every_sampled_token_once(tokenizer: Any) -> None:
    played = play(tokenizer, program("tree"), "a", "b", "aa", "bb", "sub", "short")
    rows = rows_of(played)
    assert [row.turn for row in rows] == list(range(len(rows)))
    trained = [row.completion_text for row in rows]
    assert len(rows) == 4, trained
    assert sum(sum(row.action_mask or ()) for row in rows) == sum(map(len, played[1].said))
    assert {row.member for row in rows} == {CTX.member}
    assert [row.metadata.get("end") for row in rows] == [None, None, None, "finished"]


@pytest.mark.slow
def test_tools_and_streams_are_as_the_client_expects_them(tokenizer: Any) -> None:
    played = play(tokenizer, program("tools"), call("add", a=2), "5", "4")
    row, plain = rows_of(played)
    assert [m["role"] for m in row.messages] == ["user", "assistant", "tool", "assistant"]
    assert row.tools is not None
    said, seen = played[1].said, played[1].seen
    told = json.loads(plain.metadata["environment_state"]["output"])
    assert told == [[len(seen[n]), len(said[n])] for n in range(3)], "its usage"


@pytest.mark.slow
def test_choices_with_tools_are_streamed_to_the_real_client(tokenizer: Any) -> None:
    played = play(tokenizer, program("streams"), call("add", a=2), "4")
    rows = rows_of(played)
    assert [row.completion_text for row in rows] == ["", "4"]
    told = json.loads(rows[-1].metadata["environment_state"]["output"])
    assert told == [len(played[1].seen[0]), sum(map(len, played[1].said))], "a prompt, and both answers"
    assert {row.reward for row in rows[-1:]} == {1.0}


@pytest.mark.slow
@pytest.mark.parametrize("route", ["responses", "messages"])
def test_a_route_that_the_small_server_has_not_is_refused(tokenizer: Any, route: str) -> None:
    outcome, _, _ = play(tokenizer, program("other_route", environment={"ROUTE": route}), "4")
    assert isinstance(outcome, RowError), outcome
    assert "refused: there is no such route here" in str(outcome)
    assert "HTTP Error 404" in str(outcome)


@pytest.mark.slow
def test_each_rollout_pays_for_its_own_tokens(tokenizer: Any) -> None:
    """The server is one, and its tasks are begun by whoever came first."""
    workflow = make_workflow(program("two_turns"), tokenizer, NONE)
    meter = Meter()
    engine = metered(Room(tokenizer, ["4<|im_end|>"] * 8), meter)
    rollouts = Rollouts(engine, workflow, Limits(), meter)
    costs = [Cost() for _ in range(4)]

    async def one(member: int) -> None:
        costs[member].begin()
        rows = await rollouts.play(TASK, replace(CTX, member=member))
        assert isinstance(rows, list), rows

    async def story() -> None:
        await asyncio.gather(*map(one, range(4)))

    asyncio.run(story())
    assert [cost.tokens for cost in costs] == [4] * 4, "two turns of two tokens"


@pytest.mark.slow
def test_a_crash_is_infrastructure_and_never_a_reward(tokenizer: Any) -> None:
    meter = Meter()
    workflow = make_workflow(program("crash"), tokenizer, NONE)
    engine = Room(tokenizer, ["4<|im_end|>"] * 4)
    rollouts = Rollouts(engine, workflow, Limits(retries=1), meter)
    outcome = asyncio.run(rollouts.play(TASK, CTX))
    assert isinstance(outcome, ConnectionError)
    assert "the program ended with exit code 3; the end of its output: 'about to fall\\x1b[31m" in str(
        outcome
    )
    counts = meter.take()
    assert counts["rollouts_retried"] == 1.0
    assert counts["rollouts_failed/infrastructure"] == 1.0, counts


@pytest.mark.slow
def test_what_a_program_says_of_its_key_is_kept_nowhere(
    tokenizer: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "a-key-of-32-letters-and-no-other"
    monkeypatch.setattr("explorers.workflows.rollout_server.secrets.token_urlsafe", lambda _: key)
    with caplog.at_level("DEBUG"):
        kept, _, _ = play(tokenizer, program("tells_its_key", environment={"STATUS": "0"}), "4")
        fallen, _, _ = play(tokenizer, program("tells_its_key", environment={"STATUS": "5"}), *"44")
    (row,) = rows_of((kept, cast(Any, None), None))
    output = row.metadata["environment_state"]["output"]
    assert "'OPENAI_API_KEY': '[key]'" in output
    assert isinstance(fallen, ConnectionError)
    assert key[1:] not in f"{row}{fallen}{caplog.text}"


@pytest.mark.slow
def test_a_request_that_cannot_be_honoured_is_named(tokenizer: Any) -> None:
    outcome, _, _ = play(tokenizer, program("refused"), "4")
    assert isinstance(outcome, RowError)
    assert "'temperature' is 0.123" in str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "room", "end"), [(25, 10_000, "budget"), (None, 90, "context")])
def test_a_program_that_meets_a_limit_ends_there_and_is_scored(
    tokenizer: Any, budget: int | None, room: int, end: str
) -> None:
    rewards = Rewards({"exact_answer": 1.0}, {"exact_answer": ExactAnswer()})
    args = {} if budget is None else {"budget": budget}
    played = play(tokenizer, program("endless", **args), *["5 apples"] * 30, rewards=rewards, room=room)
    (row,) = rows_of(played)
    assert (row.metadata["end"], row.reward) == (end, 0.0)


def test_a_late_program_is_an_outcome_of_its_own(tokenizer: Any) -> None:
    settings = program("hangs", environment={"PIDS": "pids"}, limits={"deadline_s": 0.05})
    workflow = make_workflow(settings, tokenizer, NONE)
    rollouts = Rollouts(Room(tokenizer, ["4<|im_end|>"]), workflow, Limits(retries=0), Meter())
    outcome = asyncio.run(rollouts.play(TASK, CTX))
    assert isinstance(outcome, TimeoutError)
    assert "took longer than 0.05 s and was killed" in str(outcome)


def test_a_program_that_leaves_a_server_behind_is_over_when_it_ends(tmp_path: Path) -> None:
    left = "import subprocess, sys; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    environment = own_environment({}, tmp_path)
    running = run_program([sys.executable, "-c", left], environment, tmp_path, output_kb=1)
    ended = asyncio.run(asyncio.wait_for(running, 30))
    assert ended.status == 0
    wait_for(lambda: not _alive(int(ended.output)))


@pytest.mark.slow
def test_of_a_long_output_the_end_is_kept_without_a_part_of_the_key(tmp_path: Path) -> None:
    key, environment = "abcdefgh", own_environment({}, tmp_path)
    for before in range(9):  # the cut goes through every letter of the key
        said = f"print({key!r} + 'x' * {1024 - before}, end='')"
        running = run_program([sys.executable, "-c", said], environment, tmp_path, output_kb=1, key=key)
        output = asyncio.run(running).output
        assert set(output.replace("[key]", "")) == {"x"}
        assert 1000 < len(output) <= 1024 + 5


@pytest.mark.slow
def test_a_cancelled_rollout_leaves_no_program(tokenizer: Any, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    workflow = make_workflow(program("hangs", environment={"PIDS": str(pids)}), tokenizer, NONE)
    rollouts = Rollouts(Room(tokenizer, ["4<|im_end|>"]), workflow, Limits(), Meter())

    async def cancelled() -> None:
        playing = asyncio.create_task(rollouts.play(TASK, CTX))
        while not pids.exists() or " " not in pids.read_text():
            await asyncio.sleep(0.01)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    asyncio.run(cancelled())
    for pid in pids.read_text().split():
        wait_for(lambda pid=pid: not _alive(int(pid)))  # type: ignore[misc]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_program_has_its_own_folder_and_no_secret_of_the_run(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RFT_HUB_TOKEN", "a secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    (row,) = rows_of(play(tokenizer, program("looks_around", environment={"MINE": 7}), "4"))
    told = json.loads(row.metadata["environment_state"]["output"])
    assert told["mine"] == "7"
    assert not {"RFT_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY"} & set(told["variables"])
    assert told["here"] != os.getcwd()
    assert not Path(told["here"]).exists()


# --- in process ------------------------------------------------------------------------------------


async def asks_twice(task: Any, client: Any, worth: float = 1.0) -> float:
    said = await client.chat.completions.create(model="policy", messages=list(task.messages))
    more = [
        *task.messages,
        said.choices[0].message.model_dump(exclude_none=True),
        {"role": "user", "content": "?"},
    ]
    again = await client.chat.completions.create(model="policy", messages=more)
    return worth * (again.choices[0].message.content == task.answer)


async def goes_on(task: Any, client: Any) -> None:
    while True:
        await client.chat.completions.create(model="policy", messages=list(task.messages))


async def swallows(task: Any, client: Any) -> float:
    try:
        await client.chat.completions.create(model="policy", messages=list(task.messages))
    except Exception:  # noqa: BLE001 - as careless programs do
        return 0.0
    return 1.0


@pytest.mark.parametrize("short", [True, False])
def test_a_function_with_a_client_needs_no_socket(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    def listens(*_: Any, **__: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "create_server", listens)
    args = {"args": {"worth": 0.5}}
    place = f"{HERE}:asks_twice"
    settings = {"use": place, "args": args} if short else {"use": "program", "args": {"agent": place, **args}}
    (row,) = rows_of(play(tokenizer, settings, "four", "5"))
    assert row.reward_parts == {"world": 0.5}
    assert [m["role"] for m in row.messages] == ["user", "assistant", "user", "assistant"]


def test_a_function_that_spends_its_budget_is_scored(tokenizer: Any) -> None:
    rewards = Rewards({"exact_answer": 1.0}, {"exact_answer": ExactAnswer()})
    settings = {"use": f"{HERE}:goes_on", "args": {"budget": 12}}
    rows = rows_of(play(tokenizer, settings, *["5 apples"] * 9, rewards=rewards))
    assert (rows[-1].metadata["end"], rows[-1].reward) == ("budget", 0.0)


def test_a_fault_of_the_engine_is_raised_though_the_program_swallows_it(tokenizer: Any) -> None:
    class Broken(Room):
        async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
            raise EngineError("it broke")

    workflow = make_workflow({"use": f"{HERE}:swallows"}, tokenizer, NONE)
    rollouts = Rollouts(Broken(tokenizer, []), workflow, Limits(), Meter())
    with pytest.raises(EngineError, match="it broke"):
        asyncio.run(rollouts.play(TASK, CTX))


# --- at the start, and at a request -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "takes one of the arguments 'command' and 'agent'"),
        ({"command": ["python", AGENT], "agent": "x:y"}, "takes one of the arguments"),
        ({"command": "python agent.py"}, "wanted a list"),
        ({"command": ["python", "no_such.py"]}, "there is no file .*no_such.py"),
        ({"command": ["no-such-program"]}, "no program 'no-such-program' on the PATH"),
        ({"command": ["python", AGENT], "limits": {"deadline": 3}}, "has 'deadline'; it may have"),
        ({"command": ["python", AGENT], "limits": {"processes": 0}}, "limits.processes is 0"),
        ({"command": ["python", AGENT], "environment": {"A": [1]}}, r"environment.A' is \[1\]"),
        ({"agent": f"{HERE}:program"}, "is no coroutine function; write `async def play.task, client.`"),
    ],
)
def test_a_mistake_is_one_error_at_the_start(tokenizer: Any, args: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        make_workflow({"use": "program", "args": args}, tokenizer, NONE)


def test_a_key_opens_its_own_rollout_and_no_other() -> None:
    async def asked() -> list[int]:
        server = RolloutServer()
        app: Any = type("App", (), {"close": lambda _: asyncio.sleep(0)})()
        async with server.open(app) as one, server.open(app) as two, server.served() as address:
            codes = [
                await asyncio.to_thread(_post, f"{address}/t/{name}/reward", key, body)
                for name, key, body in [
                    (one.name, one.key, b"1"),
                    (one.name, two.key, b"1"),
                    (one.name, "", b"1"),
                    ("none", one.key, b"1"),
                    (two.name, two.key, b'"much"'),
                    (two.name, two.key, b"NaN"),
                ]
            ]
            assert (one.reward, two.reward) == (1.0, None)
        return codes

    assert asyncio.run(asked()) == [200, 401, 401, 401, 400, 400]


def _post(url: str, key: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {key}"})  # noqa: S310
    try:
        return int(urllib.request.urlopen(request).status)  # noqa: S310 - our own server
    except urllib.error.HTTPError as err:
        return err.code
