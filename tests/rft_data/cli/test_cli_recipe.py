"""`rft recipe`, and recipes by name."""

import json
import logging
import re
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest

from tests.rft_data.cli.test_cli import rft
from tests.rft_data.run.test_online import write_recipe


@pytest.mark.slow
def test_recipes_are_listed_shown_and_compared_by_name() -> None:
    listed = json.loads(rft("recipe", "list", "--json").stdout)
    assert {"quickstart", "calculator", "gsm8k_data"} <= {one["name"] for one in listed}
    assert all({"about", "for", "needs", "takes"} <= set(one) for one in listed)
    assert "quickstart\n  Reinforcement fine-tuning end to end" in rft("recipe", "list").stdout
    shown = rft("recipe", "show", "quickstart").stdout
    assert shown.startswith("# Reinforcement")
    assert "mode: online" in shown
    assert json.loads(rft("recipe", "show", "quickstart", "--json").stdout)["text"] == shown
    assert rft("recipe", "diff", "quickstart", "recipes/quickstart.yaml").stdout == "no difference\n"
    assert 'placement.use: "inline" -> "local"' in rft("recipe", "diff", "quickstart", "async_local").stdout
    found = json.loads(rft("recipe", "diff", "quickstart", "async_local", "--json").stdout)
    [one] = [one for one in found if one["key"] == "sync.max_staleness"]
    assert one["values"] == {"left": 0, "right": 2}
    assert re.search(r"recipes/quickstart\.yaml:\d+$", one["origins"]["left"])
    assert re.search(r"recipes/async_local\.yaml:\d+$", one["origins"]["right"])
    same = ["recipe", "diff", "quickstart", "quickstart"]
    changed = rft(
        *same, "seed=7", "experience_ops=[{grpo_advantage_mapper: {}}, {reward_variance_filter: {}}]"
    )
    assert re.search(
        r"^seed: \d+ -> 7  # .*quickstart\.yaml:\d+, command line$", changed.stdout, re.MULTILINE
    )
    assert re.search(r"^experience_ops \(order\): \[.*\] -> .*, command line$", changed.stdout, re.MULTILINE)


@pytest.mark.slow
def test_a_shipped_recipe_is_taken_by_name_where_no_file_is() -> None:
    assert "valid (online recipe 'quickstart')" in rft("recipe", "validate", "quickstart").stdout
    assert "valid (online recipe 'quickstart')" in rft("recipe", "validate", "quickstart.yaml").stdout
    wrong = rft("recipe", "validate", "quickstrat")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        "error: there is no recipe at quickstrat; did you mean 'quickstart'? the shipped ones: rft recipe "
        "list.\n"
        "help: rft help missing-file (docs/troubleshooting.md#missing-file)\n",
    )


@pytest.mark.slow
def test_stored_rollouts_are_scored_by_a_shipped_recipe_of_that_name(tmp_path: Path) -> None:
    wrong = rft("data", "rescore", "sums_rescore", "--buffer", str(tmp_path / "none"))
    assert "there is no buffer at" in wrong.stderr


def test_a_file_of_a_shipped_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import chdir

    from typer.testing import CliRunner

    from rft_data.cli.app import app

    (tmp_path / "quickstart").write_text("mine")
    with chdir(tmp_path):
        done = CliRunner().invoke(app, ["recipe", "validate", "quickstart"])
    assert "quickstart holds" in done.stderr


@pytest.mark.slow
def test_copy_says_what_it_wrote_and_the_schema_is_json(tmp_path: Path) -> None:
    done = rft("recipe", "copy", "gsm8k_data", str(tmp_path / "mine"))
    written = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name for path in written] == [
        "gsm8k_data.yaml", "test.jsonl", "example_model_solutions.jsonl", "recipe.schema.json",
    ]  # fmt: skip
    assert json.loads(rft("recipe", "schema").stdout) == json.loads(written[-1].read_text())
    again = rft("recipe", "copy", "gsm8k_data", str(tmp_path / "mine"), "--json")
    assert json.loads(again.stdout) == {"written": [str(path) for path in written]}
    data, made = tmp_path / "mine" / "samples" / "test.jsonl", tmp_path / "new.yaml"
    new = rft("recipe", "new", str(made), "--goal", "grpo", "--data", str(data), "--model", "tiny", "--json")
    assert json.loads(new.stdout) == {"written": [str(made)]}


@pytest.mark.slow
def test_version_quiet_and_verbose() -> None:
    from rft_data.core.version import __version__

    assert rft("--version").stdout == f"rft-data {__version__}\n"
    assert "Traceback" not in rft("recipe", "validate", "nowhere").stderr
    said = rft("-v", "recipe", "validate", "nowhere").stderr
    assert "Traceback" in said
    assert said.splitlines()[-2].startswith("error: there is no recipe")
    assert said.splitlines()[-1] == "help: rft help missing-file (docs/troubleshooting.md#missing-file)"
    assert "Usage" in rft().stdout


def test_a_retry_of_the_hub_is_said_once() -> None:
    assert rft("recipe", "validate", "quickstart").exit_code == 0
    seen = BufferingHandler(10)  # not caplog, which also looks at loggers that do not propagate
    logging.getLogger().addHandler(seen)
    try:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s")
        logging.getLogger("another.library").warning("arrives")
    finally:
        logging.getLogger().removeHandler(seen)
    assert [record.name for record in seen.buffer] == ["another.library"], "the hub's has its own handler"


@pytest.mark.slow
def test_validate_gives_programs_every_mistake_with_its_place(tmp_path: Path) -> None:
    good = json.loads(rft("recipe", "validate", "quickstart", "--json").stdout)
    assert good == {"valid": True, "mistakes": [], "mode": "online", "name": "quickstart"}
    path = tmp_path / "over.yaml"
    path.write_text("extends: quickstart\nsed: 3\n")
    wrong = rft("recipe", "validate", str(path), "explorer.group_size=1", "--json")
    assert wrong.exit_code == 2
    found = json.loads(wrong.stdout)
    assert found["valid"] is False
    first, second = found["mistakes"]
    assert (first["file"], first["line"], first["column"], first["key"]) == (str(path), 2, 1, "sed")
    assert first["message"] == "unknown key; did you mean 'seed'?"
    assert (second["file"], second["line"], second["key"]) == (None, None, "explorer.group_size")
    assert "did you mean 'seed'?" in wrong.stderr, "for people too"
    path.write_text("extends: quickstrat\n")
    [parent] = json.loads(rft("recipe", "validate", str(path), "--json").stdout)["mistakes"]
    assert (parent["key"], parent["line"]) == ("extends", 1)


@pytest.mark.slow
def test_explain_gives_programs_every_value_with_its_origin() -> None:
    found = json.loads(rft("recipe", "explain", "quickstart", "seed=9", "--json").stdout)
    assert {"key": "seed", "value": 9, "origin": "command line"} in found["values"]
    assert {"memory", "contacts", "folder"} <= {one["what"] for one in found["outlook"]}
    assert all(one["words"] for one in found["outlook"])


@pytest.mark.slow
def test_what_deep_finds_is_at_its_key(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    last = "  - grpo_advantage_mapper: {scale: nothing}"
    recipe.write_text(recipe.read_text().replace("  - grpo_advantage_mapper: {}", last))
    mistaken = ["stages.0.trl={bf16: true, fp16: true}", "stages.1.algorithm=dapo"]  # which adds an operator
    done = rft("recipe", "validate", str(recipe), "--deep", "--json", *mistaken)
    assert done.exit_code == 2
    lines = recipe.read_text().splitlines()
    places = {"stages.0": lines.index("  - algorithm: sft") + 1, "experience_ops.2": lines.index(last) + 1}
    assert {one["key"]: one["line"] for one in json.loads(done.stdout)["mistakes"]} == places
    assert all(f"{recipe}:{line}:" in done.stderr for line in places.values())
