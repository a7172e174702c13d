"""Several runs in one buffer at the same time: `rft hub` serves it, and each recipe names its address."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.codec import to_preferences
from rft_data.core.errors import RecipeError
from rft_data.core.rows import PreferencePair
from rft_data.core.words import HubRole, PairSource
from rft_data.placement.hub import HubClient, HubServer
from rft_data.placement.hub.access import make_token
from rft_data.placement.hub.client import HUB_TOKEN
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
from tests.ports import free_port
from tests.rft_data.run.test_modes import COMMON, EVAL, EXPLORE, TASKS, TRAIN, recipe
from tests.template import FORK

SECRET = "a-secret-of-a-shared-hub"  # noqa: S105
ROOT = Path(__file__).parents[3]
RUN = """
import sys
from pathlib import Path
from rft_data.recipe import load_recipe
from rft_data.run.start import run_recipe
run_recipe(load_recipe(Path(sys.argv[1])))
"""
PLACED = "placement: {{use: {place}}}\n"
ONLINE = COMMON + "{model}{tasks}{operators}" + "selector: {{use: shuffle}}\nstages:\n{stage}"
IMITATION = (
    COMMON + "{model}" + "stages: [{{algorithm: sft, data: {{min_reward: 0}}, trl: {{max_steps: 2}}}}]\n"
)


def behind(template: str) -> str:
    """The recipe with the hub's address as its buffer."""
    return template.replace("{root}/buffer", "{hub}") + PLACED


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of `rft hub`, in a process of its own."""
    monkeypatch.setenv(HUB_TOKEN, SECRET)
    command = ["hub", str(tmp_path / "buffer"), "--port", str(free_port())]
    with subprocess.Popen(
        [sys.executable, "-m", "rft_data.cli.app", *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stdout is not None
        yield serving.stdout.readline().strip()
        serving.terminate()
        assert serving.wait(60) == 130, "it was asked to stop"


def done_together(root: Path, *names: str) -> dict[str, Any]:
    """`rft run` of these recipes, each in a process of its own, at the same time; their summaries."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", FORK + RUN, str(root / f"{name}.yaml")],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    try:
        said = {name: process.communicate(timeout=600)[1] for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
    assert {name: process.returncode for name, process in running.items()} == dict.fromkeys(names, 0), said
    return {name: json.loads((root / name / "summary.json").read_text()) for name in names}


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_runs_of_every_mode_share_a_hub_at_once(tmp_path: Path, hub: str) -> None:
    recipe(tmp_path, behind(EXPLORE), "looking", "explore", groups=6, hub=hub, place="inline")
    recipe(tmp_path, behind(ONLINE), "both", "online", hub=hub, place="inline")
    first = done_together(tmp_path, "looking", "both")
    assert first["looking"]["groups"]["ready"] == 6
    assert first["both"]["groups"]["trained"] == 6
    trained = run_recipe(recipe(tmp_path, behind(TRAIN), "learning", "train", hub=hub, place="inline"))
    assert trained["groups"]["trained"] == 6
    imitated = run_recipe(
        recipe(tmp_path, behind(IMITATION), "imitating", "offline", hub=hub, place="inline")
    )
    assert imitated["stages"]["0-sft"]["examples"] > 0
    models = f"{tmp_path}/both/weights/v*"
    run_recipe(recipe(tmp_path, behind(EVAL), "measuring", "eval", models=models, hub=hub, place="local"))
    again = run_recipe(load_recipe(tmp_path / "both.yaml"))
    assert again == first["both"], "a run that ended is known behind the hub too"
    with Buffer(tmp_path / "buffer", read_only=True) as buffer:
        groups = buffer.read("groups").to_pylist()
        assert Counter(row["run_id"] for row in groups) == {"looking": 6, "both": 6}
        leased = [row for row in buffer.read("leases").to_pylist() if row["kind"] == "grant"]
        assert Counter(row["run_id"] for row in leased) == {"looking": 3, "both": 3}
        by_id = {row["group_id"]: row["run_id"] for row in groups}
        assert all(by_id[group] == row["run_id"] for row in leased for group in row["group_ids"])
        measured = buffer.read("experiences", ["run_id", "source"]).to_pylist()
        assert any(row["run_id"] == "measuring" for row in measured)
        assert buffer.read("stage_rows").column("run_id").to_pylist() == ["imitating"]


@pytest.mark.parametrize(
    ("template", "mode", "refusal"),
    [
        (EXPLORE + "serve: {{port: 7700}}\n", "explore", "'serve' offers a hub of the run's own.*remove"),
        (ONLINE + "rewards: {{wait_s: 5, port: 7700}}\n", "online", "'rewards.port' is of a hub.*remove"),
        (COMMON.replace("run_dir: {root}/{name}\n", "") + "{tasks}", "data", "mode 'data' writes its buffer"),
    ],
)
def test_what_needs_a_buffer_of_its_own_is_refused_behind_a_hub(
    tmp_path: Path, template: str, mode: str, refusal: str
) -> None:
    tasks = TASKS if mode != "data" else TASKS.partition("explorer:")[0]
    with pytest.raises(RecipeError, match=f"(?s){refusal}"):
        recipe(
            tmp_path,
            template.replace("{root}/buffer", "hub://127.0.0.1:7"),
            "mine",
            mode,
            groups=2,
            tasks=tasks,
        )


def test_a_run_behind_a_hub_needs_the_secret_for_its_explorers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = recipe(
        tmp_path, behind(EXPLORE), "looking", "explore", groups=2, hub="hub://127.0.0.1:7", place="local"
    )
    monkeypatch.setenv(HUB_TOKEN, make_token(SECRET, HubRole.TRAINER, "looking"))
    with pytest.raises(RecipeError, match=r"'buffer.uri' needs the secret of a hub, .* token of a client"):
        run_recipe(looking)


@pytest.mark.slow
def test_pairs_that_operators_find_are_stored_through_a_hub(tmp_path: Path) -> None:
    turn = {"role": "user", "content": "1+1="}
    pair = PreferencePair(
        source=PairSource.MINED,
        taskset="sums",
        task_id="one",
        messages=(turn,),
        chosen=({"role": "assistant", "content": "2"},),
        rejected=({"role": "assistant", "content": "3"},),
    )
    with (
        Buffer(tmp_path / "buffer") as buffer,
        HubServer(buffer) as served,
        HubClient(served.address, served.token) as client,
    ):
        assert [client.add_preferences(pairs) for pairs in ([pair], [pair], [])] == [1, 0, 0]
        assert to_preferences(client.read("preferences")) == to_preferences(buffer.read("preferences"))
        assert buffer.counts()["preferences"] == 1
