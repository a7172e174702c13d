import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import typer
from click.testing import Result
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from tests.rft_data.conftest import make_experience

ROOT = Path(__file__).parents[3]


def rft(*arguments: str) -> Result:
    """A command in this process; a process of its own takes seconds to import the libraries again."""
    with chdir(ROOT):
        done = CliRunner().invoke(app, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), "it ends in a traceback"
    return done


@pytest.mark.slow
def test_hub_and_command_line_import_nothing_heavy() -> None:
    code = """
import sys
import rft_data, rft_data.cli.app, rft_data.recipe, rft_data.core.schema, rft_data.loop.online
import rft_data.run.build, rft_data.run.curate, rft_data.run.start
import ops, trainers, explorers, recipes
heavy = {"torch", "vllm", "trl", "ray", "data_juicer", "transformers", "lancedb", "matplotlib"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_stdout_is_for_results_alone_whatever_else_prints(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import os\n\nprint('from Python')\nos.system('echo from a program')\n"
        "def rows():\n    return [{'question': '1+1?', 'answer': '2'}] * 3\n"
    )
    code = "import rft_data.cli.app as rft; rft.app({!r})"
    check = ["data", "check", f"{tmp_path}/loud.py:rows", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code.format(check)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert json.loads(done.stdout)["tasksets"][0]["rows"] == 3
    assert "from Python\n" in done.stderr
    assert "from a program\n" in done.stderr
    schema = [sys.executable, "-c", code.format(["recipe", "schema"])]
    with subprocess.Popen(schema, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as gone:
        gone.stdout.close()
        assert (gone.stderr.read(), gone.wait()) == (b"", 141)


@pytest.mark.slow
def test_help_names_every_command() -> None:
    script = Path(sys.executable).with_name("rft")
    done = subprocess.run([str(script), "--help"], capture_output=True, text=True, cwd=ROOT, check=True)
    assert all(name in done.stdout for name in ("run", "resume", "recipe", "buffer", "data"))


@pytest.mark.slow
def test_every_command_gives_its_result_to_programs() -> None:
    def without(command: Any, name: str) -> Iterator[str]:
        for below, inside in getattr(command, "commands", {}).items():
            yield from without(inside, f"{name}{below} ")
        if not hasattr(command, "commands") and "--json" not in {o for p in command.params for o in p.opts}:
            yield name.strip()

    assert list(without(typer.main.get_command(app), "")) == ["recipe schema"], "which prints JSON anyway"
    found = json.loads(rft("help", "disk-full", "--json").stdout)
    assert (found["code"], bool(found["causes"]), bool(found["actions"])) == ("disk-full", True, True)


@pytest.mark.slow
def test_validate_prints_the_result_on_stdout() -> None:
    done = rft("recipe", "validate", "recipes/quickstart.yaml")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "valid (online recipe 'quickstart')" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["recipe", "validate", "nowhere.yaml"], 2, "there is no recipe at nowhere.yaml"),
        (["recipe", "validate", "recipes/quickstart.yaml", "sed=1"], 2, "unknown key; did you mean 'seed'?"),
        (["run", "recipes/quickstart.yaml", "explorer.engine.use=vlm"], 2, "explorer.engine.use"),
        (["run", "recipes/gsm8k_data.yaml"], 2, "run it with: rft data run"),
        (["data", "run", "recipes/quickstart.yaml"], 2, "run it with: rft run"),
        (["resume", "runs/nowhere"], 2, "holds no run"),
        (["buffer", "info", "nowhere"], 2, "there is no buffer at"),
        (["buffer"], 2, "info"),
        (["buffr"], 2, "No such command"),
    ],
)
def test_bad_usage_is_one_clear_error_and_a_non_zero_exit(
    arguments: list[str], code: int, message: str
) -> None:
    done = rft(*arguments)
    assert done.exit_code == code
    assert message in done.stderr + done.stdout


@pytest.mark.slow
def test_buffer_info_and_head_as_text_and_json(tmp_path: Path) -> None:
    with Buffer(tmp_path / "b") as buffer:
        buffer.append([make_experience(i) for i in range(12)])
    info = rft("buffer", "info", str(tmp_path / "b"))
    assert re.search(r"experiences +12 ", info.stdout)
    value = json.loads(rft("buffer", "info", str(tmp_path / "b"), "--json").stdout)
    assert value["sources"] == {"rollout": 12}
    head = json.loads(rft("buffer", "head", str(tmp_path / "b"), "-n", "2", "--json").stdout)
    assert [row["seq"] for row in head] == [10, 11]
    text = rft("buffer", "head", str(tmp_path / "b"), "-n", "1").stdout
    assert re.search(r"completion_text +2\n", text)
    wrong = rft("buffer", "head", str(tmp_path / "b"), "--table", "experience")
    assert wrong.exit_code == 2
    assert "did you mean 'experiences'?" in wrong.stderr


ONLINE = """\
recipe: 1
name: small
mode: online
run_dir: {root}/run
buffer: {{uri: {root}/run/buffer}}
model: {{path: {root}/nothing}}
tasks:
  - name: a
    source: {{use: reasoning_gym, dataset: {dataset}, size: 10}}
    heldout: 0.3
selector: {{use: shuffle}}
explorer:
  engine: {{use: transformers}}
  group_size: 4
  max_tokens: 8
  reward: [{{use: exact_answer}}]
experience_ops: [{{grpo_advantage_mapper: {{}}}}]
stages: [{{algorithm: grpo, groups_per_step: 2, steps: 3}}]
evaluation: {{limit: 4}}
"""


def make_model(folder: Path) -> None:
    """What looks like a model's folder before it is loaded."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").touch()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("chain_sum", "model.path: '"),
        ("chain_summ", "has no dataset 'chain_summ'; did you mean 'chain_sum'?"),
        ("chain_sum, args: {min_terms: 5, max_terms: 2}", "reasoning_gym dataset 'chain_sum' refuses"),
    ],
)
def test_run_with_a_wrong_model_or_taskset_ends_in_one_error(
    tmp_path: Path, dataset: str, message: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(ONLINE.format(root=tmp_path, dataset=dataset))
    if dataset != "chain_sum":
        make_model(tmp_path / "nothing")
    done = rft("run", str(path))
    assert done.exit_code in (1, 2)
    assert message in done.stderr
    assert not (tmp_path / "run" / "summary.json").exists()


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(ONLINE.format(root=tmp_path, dataset="chain_sum"))
    make_model(tmp_path / "nothing")
    # what an environment without the package looks like to import
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    done = rft("run", str(path))
    assert done.exit_code == 3
    assert "pip install 'rft-data[train]'" in done.stderr
