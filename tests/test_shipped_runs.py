"""Every shipped recipe that a CPU can run, run as a person types it, one after another: `make recipes`.

It takes most of an hour. What each recipe is about must have happened: exit code 0 alone proves little.
Headers and settings are tested in seconds: tests/rft_data/recipe/test_shipped.py, tests/recipes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.recipe.load import load_recipe
from rft_data.recipe.shipped import shipped_recipe, shipped_recipes

ROOT = Path(__file__).parents[1]
NEED_GPUS = {
    "code_mbpp": "small_programs",
    "gsm8k_1gpu": "quickstart",
    "gsm8k_8gpu": "async_local",
    "gsm8k_lora_1gpu": "sums_lora",
    "gsm8k_ray": "sums_ray",
    "verifiers_1gpu": "sums_verifiers",
}
"""Recipes of models that a CPU cannot train, and the recipe of a tiny model that is run for each."""


@dataclass(frozen=True)
class Outcome:
    """What a recipe left behind."""

    said: str
    """What its commands printed to stdout."""
    summary: dict[str, Any]
    """Its summary.json; empty for `rft data run`, which writes none."""
    buffer: Buffer

    def rows(self, table: str, *columns: str) -> list[dict[str, Any]]:
        """The rows of its buffer."""
        rows: list[dict[str, Any]] = self.buffer.read(table, list(columns)).to_pylist()
        return rows

    def parts(self, name: str) -> list[float | None]:
        """This part of the reward of every rollout; None where it was not scored."""
        rows = [json.loads(row["reward_parts"] or "{}") for row in self.rows("experiences", "reward_parts")]
        return [parts.get(name) for parts in rows if parts]


def learned(it: Outcome) -> bool:
    """Whether held-out tasks go better than before."""
    accuracy = list(it.summary["heldout_accuracy"].values())
    return bool(accuracy[-1] > accuracy[0])


def learned_from_rewards(it: Outcome) -> bool:
    """Whether held-out tasks go much better than after imitation."""
    *_, imitating, rewarded = it.summary["heldout_accuracy"].values()
    return bool(rewarded > imitating + 0.3)


def trained(steps: int) -> Callable[[Outcome], bool]:
    """Whether so many optimizer steps took their groups."""
    return lambda it: bool(it.summary["consumed_steps"] == steps)


def a_step_late(it: Outcome) -> bool:
    """Whether some groups were one version old when they were trained on, and none was older."""
    sampled = {row["group_id"]: row["version_min"] for row in it.rows("groups", "group_id", "version_min")}
    grants = [row for row in it.rows("leases", "kind", "version", "group_ids") if row["kind"] == "grant"]
    return {1} <= {row["version"] - sampled[one] for row in grants for one in row["group_ids"]} <= {0, 1}


def of_two_explorers(it: Outcome) -> bool:
    """Whether each of two explorers sampled."""
    rows = it.rows("experiences", "source", "explorer_id")
    return len({row["explorer_id"] for row in rows if row["source"] == "rollout"}) == 2


def right_and_wrong(it: Outcome) -> bool:
    """Whether the reward told answers apart."""
    return {0.0, 1.0} <= {row["reward"] for row in it.rows("experiences", "reward")}


def judged_by_rollouts(it: Outcome) -> bool:
    """Whether the second run left out tasks by the rollouts that the first one stored."""
    found = re.findall(r"task_pass_rate_filter +in +(\d+) +out +(\d+)", it.said)
    return [int(out) < int(came) for came, out in found] == [False, True]


def examples(it: Outcome) -> bool:
    """Whether every stage had something to learn from."""
    return all(stage["examples"] > 0 for stage in it.summary["stages"].values())


def easy_first(it: Outcome) -> bool:
    """Whether the first tasks were of fewer terms than a uniform choice of three to five has."""
    groups = sorted(it.rows("groups", "ordinal", "taskset"), key=lambda row: row["ordinal"])
    terms = [int(row["taskset"].removeprefix("terms-")) for row in groups]
    return len(terms) > 40 and sum(terms[:40]) / 40 < 3.5


def gated(it: Outcome) -> bool:
    """Whether answers went past the gate, and others did not."""
    pairs = list(zip(it.parts("safe"), it.parts("helpful"), strict=True))
    kept = [safe for safe, helpful in pairs if safe is not None and helpful]
    shut = [safe for safe, helpful in pairs if safe is not None and safe < 0]
    return bool(kept and shut) and min(kept) >= 0


@dataclass(frozen=True)
class Shown:
    """How a recipe is run here, and what must be true then."""

    point: Callable[[Outcome], bool]
    overrides: str = ""
    """What makes it short; without them it takes more than three minutes."""
    commands: str = "rft run {recipe}"
    """As in its header."""


_BESIDE = "rft run {{recipe}} & {other}; wait $!"
DATA = "rft data run {recipe}"
IMPORT = "rft buffer import runs/{0}/buffer recipes/samples/{1}.jsonl\n"
COURTESY = IMPORT.format("courtesy", "courtesy_answers") + IMPORT.format("courtesy", "courtesy_pairs")
JUDGED = "python recipes/stand_in_judge.py --port 8701 & judge=$!\ntrap 'kill $judge' EXIT\nrft run {recipe}"
RESCORE = """rft data rescore {recipe} --run sums-grpo --as steps
rft data dry-run {recipe} --run sums-grpo --against stored
rft data readmit {recipe} --run sums-grpo --as second-chance"""

RUNS = {
    "sums_grpo": Shown(learned),
    "sums_eval": Shown(lambda it: all("4" in rates for rates in it.summary["pass_at_k"].values())),
    "sums_dpo": Shown(examples),
    "sums_kto": Shown(examples),
    "sums_best_of": Shown(examples),
    "sums_rescore": Shown(lambda it: "second-chance" in it.said, commands=RESCORE),
    "sums_explore": Shown(lambda it: len(it.rows("groups", "group_id")) >= 120),
    "sums_train": Shown(trained(8)),
    "sums_rloo": Shown(trained(20)),
    "sums_reinforce_plus_plus": Shown(trained(20)),
    "sums_dapo": Shown(lambda it: it.summary["groups"]["dropped"] > 0),
    "sums_replay": Shown(lambda it: it.summary["rows"]["reused"] > 0),
    "sums_lora": Shown(lambda it: any(Path("runs/sums-lora").rglob("adapter_model.safetensors"))),
    "sums_chord": Shown(
        lambda it: any(row["source"] == "expert" for row in it.rows("experiences", "source"))
    ),
    "sums_distill": Shown(learned),
    "sums_judge": Shown(
        lambda it: any(it.parts("llm_judge")),
        commands=JUDGED,
    ),
    "sums_feedback": Shown(
        lambda it: len(it.rows("feedback", "experience_id")) > 0 and "answers were rated" in it.said,
        commands=_BESIDE.format(
            other="RFT_HUB_TOKEN=$(rft token feedback --name rater) python recipes/rater.py hub://127.0.0.1:7701"
        ),
    ),
    "sums_curriculum": Shown(easy_first),
    "sums_one_step_off": Shown(a_step_late),
    "async_local": Shown(of_two_explorers),
    "sums_ray": Shown(lambda it: it.summary["placement"] == "ray"),
    "sums_verifiers": Shown(right_and_wrong),
    "program_cpu": Shown(right_and_wrong),
    "served_cpu": Shown(
        lambda it: "visits that failed: none" in it.said,
        commands=_BESIDE.format(other="python recipes/sums_users.py --port 8009"),
    ),
    "courtesy_pairs": Shown(examples, commands=COURTESY + "rft run {recipe}"),
    "courtesy_eval": Shown(learned),
    "courtesy_ppo": Shown(learned),
    "safety_reward": Shown(
        examples, commands=IMPORT.format("safety", "courtesy_safety") + "rft run {recipe}"
    ),
    "safety_gate": Shown(gated),
    "extend": Shown(trained(2)),
    "gsm8k_data": Shown(lambda it: len(it.rows("experiences", "reward")) > 0, commands=DATA),
    "gsm8k_solutions": Shown(lambda it: len(it.rows("experiences", "reward")) > 0, commands=DATA),
    "gsm8k_preferences": Shown(examples),
    "task_curation": Shown(judged_by_rollouts, commands=f"{DATA}\n{DATA}"),
    "small_programs": Shown(learned),
    "frozen_lake": Shown(learned),
    "guessing": Shown(learned),
    "calculator": Shown(learned),
    "countdown": Shown(learned, overrides="stages.1.steps=10"),
    "quickstart": Shown(learned_from_rewards),
}
"""Every other recipe; one that begins with what another left comes after it."""


def test_every_shipped_recipe_is_run_here_or_one_that_it_names_in_its_place() -> None:
    assert sorted([*RUNS, *NEED_GPUS]) == [one.name for one in shipped_recipes()]
    for name, instead in NEED_GPUS.items():
        assert instead in RUNS
        assert f"recipes/{instead}.yaml" in shipped_recipe(name).path.read_text()


def test_only_recipes_that_ask_for_a_gpu_are_not_run_here() -> None:
    needs = {one.name: one.facts["Needs"].replace("no GPU", "") for one in shipped_recipes()}
    assert sorted(NEED_GPUS) == [name for name, said in needs.items() if "GPU" in said]


@dataclass
class Desk:
    """A folder where recipes are run, and how long each took."""

    folder: Path
    took: list[tuple[str, float, str]] = field(default_factory=list)
    """Name, seconds and how it ended."""

    def bash(self, body: str) -> str:
        """What commands print; each must end well."""
        path = [str(ROOT), str(Path(sys.prefix) / "apart"), os.environ.get("PYTHONPATH", "")]
        env = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(filter(None, path)),
            "RFT_HUB_TOKEN": "a-secret-of-a-test",
            "RFT_SERVE_TOKEN": "a-random-text-of-a-test",
        }
        command = ["bash", "-euo", "pipefail", "-c", body]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """With the recipes, as in a checkout; at the end the table of what was run is printed."""
    made = Desk(Path(os.environ.get("RFT_RECIPES_FOLDER") or tmp_path_factory.mktemp("recipes")))
    made.folder.mkdir(parents=True, exist_ok=True)
    if not (made.folder / "recipes").is_symlink():
        (made.folder / "recipes").symlink_to(ROOT / "recipes")
    yield made
    lines = [f"| `{name}` | {seconds / 60:.1f} | {how} |" for name, seconds, how in made.took]
    sys.stdout.write("\n".join(["", "| recipe | minutes | result |", "|---|---|---|", *lines, ""]))


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("RFT_TEST_RECIPES"),
    reason="every recipe takes most of an hour: set RFT_TEST_RECIPES=1, or `make recipes`",
)
@pytest.mark.parametrize("name", RUNS)
def test_a_shipped_recipe_does_what_it_is_about(
    name: str, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk.folder)
    monkeypatch.setenv("RFT_SERVE_TOKEN", "a-random-text-of-a-test")
    shown, file = RUNS[name], f"recipes/{name}.yaml"
    recipe: Any = load_recipe(Path(file), shown.overrides.split())
    begun = time.monotonic()
    desk.took.append((name, 0.0, "failed"))
    said = desk.bash(shown.commands.format(recipe=f"{file} {shown.overrides}".strip()))
    desk.took[-1] = (name, time.monotonic() - begun, "failed")
    summary: dict[str, Any] = {}
    if shown.commands != RESCORE and DATA not in shown.commands:
        assert json.loads(desk.bash(f"rft status {recipe.run_dir} --json"))["standing"]["state"] == "finished"
        summary = json.loads((Path(recipe.run_dir) / "summary.json").read_text())
        assert summary.get("rows", {}).get("residual", 0) == 0
    desk.bash(f"rft buffer verify {recipe.buffer.uri}\nrft buffer books {recipe.buffer.uri}")
    with Buffer(recipe.buffer.uri, read_only=True) as buffer:
        assert shown.point(Outcome(said, summary, buffer))
    how = f"passed, with `{shown.overrides}`" if shown.overrides else "passed"
    desk.took[-1] = (*desk.took[-1][:2], how)
