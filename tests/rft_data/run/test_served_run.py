"""A run whose rollouts are the visits of users: every visit is answered, and each is trained on once."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from explorers.workflows.visit_keys import VisitKeys
from recipes.sums_users import Users
from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.errors import RecipeError
from rft_data.core.schema import TABLES
from rft_data.loop.member import Member
from rft_data.loop.online import OnlineLoop
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.recipe.load import load_recipe, load_run
from rft_data.run.start import run_recipe
from rft_data.run.watch.step_log import StepLog
from tests.ports import free_port
from tests.waiting import LIMIT_S, wait_for

TOKEN = "a token of enough characters"  # noqa: S105
SECRET = "explorer.workflow.args.token=${env:RFT_SERVE_TOKEN}"  # noqa: S105
RECIPE = """\
recipe: 1
name: served
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/buffer}}
model: {{build: {{use: tiny_qwen2, hidden_size: 64, num_layers: 2, num_heads: 2, intermediate_size: 128}}}}
tasks: [{{name: users, source: {{use: served}}}}]
selector: {{use: sequential}}
explorer:
  engine: {{use: transformers, max_model_len: 128}}
  max_tokens: 4
  group_size: 1
  workflow: {{use: served, args: {{token: {token}, port: {port}}}}}
  reward: []
experience_ops: [{{invalid_reward_filter: {{}}}}, {{reward_advantage_mapper: {{}}}}]
stages:
  - {{algorithm: reinforce_plus_plus, groups_per_step: 4, steps: 3, trl: {{learning_rate: 1.0e-3}}}}
monitor: {{trackers: []}}
"""


def recipe(root: Path, port: int = 8009) -> Path:
    path = root / "served.yaml"
    path.write_text(RECIPE.format(root=root, port=port, token=json.dumps(TOKEN)))
    return path


@contextmanager
def users_at(port: int, *, number: int) -> Iterator[Users]:
    """Users who come until the server has gone, which it has at the end of the block."""
    users = Users(f"http://127.0.0.1:{port}", TOKEN, seed=0)
    threads = [threading.Thread(target=users.come, args=(n, 10_000), daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    yield users
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def check_secrets(root: Path, log: str) -> None:
    """Neither the token, which the environment gave, nor a key is in a run's log, rows or other files."""
    with Buffer(root / "buffer", read_only=True) as buffer:
        rows = {name: buffer.read(name).to_pylist() for name in TABLES}
    visits = {json.loads(row["metadata"])["trajectory"] for row in rows["experiences"]}
    assert visits
    files = [path.read_bytes().decode("latin-1") for path in (root / "run").rglob("*") if path.is_file()]
    written = "\n".join([log, repr(rows), *files])
    assert all(secret not in written for secret in (TOKEN, *map(VisitKeys(TOKEN).key, visits)))


@pytest.mark.slow
def test_users_are_served_over_changes_of_weights_and_each_visit_is_trained_on_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    monkeypatch.setenv("RFT_SERVE_TOKEN", TOKEN)
    with users_at(port, number=3) as users, caplog.at_level("DEBUG"):
        summary = run_recipe(load_recipe(recipe(tmp_path, port), [SECRET]))
    check_secrets(tmp_path, caplog.text)
    assert summary["groups"]["trained"] == 12
    assert not users.troubles, "a visit failed while the server was there"
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        rows = buffer.read("experiences").to_pylist()
        leases = buffer.read("leases").to_pylist()
    trained = [group for lease in leases if lease["kind"] == "grant" for group in lease["group_ids"]]
    assert len(trained) == len(set(trained)) == 12
    assert len({row["version_min"] for row in rows}) == 3, (
        "each step was sampled with the weights of the last"
    )
    for row in rows:
        assert "arithmetic problem" in json.loads(row["messages"])[0]["content"]
        assert row["reward"] in (0.0, 1.0)
        assert sum(row["action_mask"]) > 0


@pytest.mark.slow
def test_a_thumb_that_comes_after_the_end_is_the_reward_of_its_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, hub = free_port(), free_port()
    monkeypatch.setenv(HUB_TOKEN, "the secret of the hub of this run")
    changes = [
        f"rewards={{wait_s: 3600, port: {hub}}}",
        "sync={max_staleness: 1}",
        "experience_ops=[{feedback_mapper: {}}, {invalid_reward_filter: {}}, {reward_advantage_mapper: {}}]",
        "stages.0.groups_per_step=2",
        "stages.0.steps=1",
    ]
    with ThreadPoolExecutor(1) as running:
        run = running.submit(run_recipe, load_recipe(recipe(tmp_path, port), changes))
        thumbs = dict(zip(visited(f"http://127.0.0.1:{port}", 2), (1.0, 0.25), strict=True))
        for trajectory, thumb in thumbs.items():
            rated = ["feedback", "add", "--buffer", f"hub://127.0.0.1:{hub}", "--author", "thumbs", "--json"]
            words = ["data", *rated, "--trajectory", trajectory, "--value", str(thumb)]
            assert CliRunner().invoke(app, words).exit_code == 0, "it was stored when its end was answered"
        assert run.result(LIMIT_S)["groups"]["trained"] == 2
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        rows = {row["group_id"]: row for row in buffer.read("experiences").to_pylist()}
        rewards = {row["group_id"]: row["rewards"] for row in buffer.read("groups").to_pylist()}
    found = {json.loads(row["metadata"])["trajectory"]: rewards[group] for group, row in rows.items()}
    assert {name: found[name] for name in thumbs} == {name: [thumb] for name, thumb in thumbs.items()}


def visited(base: str, number: int) -> list[str]:
    """Ids of recorded trajectories that clients ended without a reward."""
    found: list[str] = []

    def visit() -> bool:
        try:
            token = {"authorization": f"Bearer {TOKEN}"}
            opened = http.post("/trajectories", headers=token).raise_for_status().json()
            key = {"authorization": f"Bearer {opened['key']}"}
            asked = {"messages": [{"role": "user", "content": "1 + 1 ="}]}
            http.post(f"{opened['base_url']}/chat/completions", headers=key, json=asked).raise_for_status()
            ended = http.post(f"/trajectories/{opened['id']}/end", headers=key).raise_for_status().json()
        except httpx.HTTPError:
            return False  # the run is starting
        assert ended["stored"] is (ended["experience_id"] is not None)
        found.extend([opened["id"]] if ended["stored"] else [])
        return len(found) == number

    with httpx.Client(base_url=base, timeout=60) as http:
        wait_for(visit)
    return found


def test_what_users_ask_is_played_by_the_workflow_that_serves_them(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"'users' is what clients .*'single_turn' plays it"):
        load_recipe(
            recipe(tmp_path),
            ["explorer.workflow={use: single_turn}", "explorer.reward=[{use: exact_answer}]"],
        )


class Killing:
    """Kills the pinned explorer after the second step, and does not let the run end before it is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.killed = False
        self.back: list[tuple[int, int]] = []
        """The last steps, and the step whose weights it served after them."""
        stepped = StepLog.stepped

        def observed(log: StepLog, loop: OnlineLoop, *args: Any) -> None:
            stepped(log, loop, *args)
            self._look(loop, next(one for one in loop.exploring.fleet.members if one.role.name == PINNED))

        monkeypatch.setattr(StepLog, "stepped", observed)

    def _look(self, loop: OnlineLoop, pinned: Member) -> None:
        if not self.killed:
            if loop.step == 2:
                self.killed = True
                os.kill(int(pinned.role._process.where.split()[1]), signal.SIGKILL)  # type: ignore[attr-defined]
            return
        for under_way in (pinned.starting, pinned.loading and pinned.loading.future):
            if under_way:
                under_way.result(LIMIT_S)
        if pinned.version >= 0 and pinned.deaths:
            self.back.append((loop.step, loop.versions.optimizer_step(pinned.version)))


PINNED = "explorer-1"


@pytest.mark.heavy
def test_a_share_of_the_users_is_served_by_weights_some_publications_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when their explorer is killed in between, and when the run ends and goes on."""
    port, steps, behind = free_port(), 8, 1
    changes = [
        SECRET,
        f"ab={{behind: {behind}, share: 0.5}}",
        f"sync={{every: 1, max_staleness: {behind}}}",
        "placement={use: local, explorers: {count: 2}}",
        f"stages.0.steps={steps}",
        "stages.0.trl={learning_rate: 1.0e-3, lr_scheduler_type: constant}",
    ]
    killing = Killing(monkeypatch)
    monkeypatch.setenv("RFT_SERVE_TOKEN", TOKEN)
    with users_at(port, number=3) as users:
        run_recipe(load_recipe(recipe(tmp_path, port), changes))
    assert f"{PINNED} is started again" in caplog.text
    assert killing.back, "it served again before the run's end"
    assert all(step - served in (behind, behind + 1) for step, served in killing.back), killing.back
    assert not users.troubles.keys() - {"HTTPStatusError", "InternalServerError"}, "429 and 503 of its arm"
    steps += 2
    with users_at(port, number=3) as users:
        run_recipe(load_run(tmp_path / "run", [f"steps={steps}"]))
    assert not users.troubles, "a visit failed while the server was there"
    check_secrets(tmp_path, caplog.text)
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        rows = {row["group_id"]: row for row in buffer.read("experiences").to_pylist()}
        leases = [one for one in buffer.read("leases").to_pylist() if one["kind"] == "grant"]
        step_of = {row["version"]: row["step"] for row in buffer.read("versions").to_pylist()}
        metrics = buffer.read("metrics").to_pylist()
    arms: Counter[str] = Counter()
    resumed: Counter[str] = Counter()
    for lease in leases:
        for row in (rows[group] for group in lease["group_ids"]):
            arm, step = json.loads(row["metadata"])["arm"], lease["step"]
            arms[arm] += 1
            resumed[arm] += step >= steps - 2
            assert row["explorer_id"] == {"old": PINNED, "new": "explorer-0"}[arm]
            assert row["version_min"] == row["version_max"]
            lag = step - step_of[row["version_min"]]
            # the newest that the bound lets train is also the oldest that the pinned explorer serves
            assert lag == min(behind, step) if arm == "old" else 0 <= lag <= behind
    assert arms.total() == 4 * steps
    assert 2 <= arms["old"] <= 2 * steps, "its share, or less where its users came late"
    assert resumed["old"] > 0, "of weights that were published before the run ended"
    counted = {key: sum(m["value"] for m in metrics if m["key"] == f"ab/{key}/n") for key in arms}
    assert all(arms[arm] <= counted[arm] <= len(rows) for arm in arms)
