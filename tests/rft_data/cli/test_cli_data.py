"""The `rft data` commands, as a person calls them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.buffer import Buffer
from rft_data.cli.app import app
from rft_data.core.rows import Task
from rft_data.exchange.feedback import feedback_about, fold
from tests.rft_data.run.rejudge.explored import explore

RECIPE = """\
recipe: 1
name: learning
mode: train
run_dir: {root}/learning
buffer: {{uri: {root}/buffer}}
model: {{path: {root}/model}}
explored_by: book
group_size: 2
experience_ops:
{operators}
stages:
  - {{algorithm: grpo, groups_per_step: 2, steps: 1}}
"""
STRICT = "  - reward_range_filter: {}\n  - reward_variance_filter: {}\n  - grpo_advantage_mapper: {}"
LENIENT = "  - feedback_mapper: {}\n  - reward_range_filter: {}\n  - grpo_advantage_mapper: {}"
REWARDS = [[1.0, 0.0], [1.0, 1.0], [None, 0.5]]
ADD = ["feedback", "add", "--experience", "x", "--author", "me"]


def rft(*arguments: object, code: int = 0) -> str:
    """The command in this process; what it prints as its result, or the error."""
    done = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A buffer with three groups, of which the run kept one, and two recipes."""
    with Buffer(tmp_path / "buffer") as buffer:
        explore(buffer, REWARDS)
    for name, operators in (("strict", STRICT), ("lenient", LENIENT)):
        (tmp_path / f"{name}.yaml").write_text(RECIPE.format(root=tmp_path, operators=operators))
    return tmp_path


@pytest.mark.slow
def test_dry_run_tells_the_difference_and_writes_nothing(house: Path) -> None:
    with Buffer(house / "buffer", read_only=True) as buffer:
        before = buffer.counts()
    told = rft("dry-run", house / "lenient.yaml", "--against", house / "strict.yaml", "--json")
    value = json.loads(told)
    assert (value["first"]["kept"], value["second"]["kept"]) == (5, 2)
    assert value["difference"]["only_first"] == 3
    assert len(value["rows"]) == 6
    text = rft("dry-run", house / "lenient.yaml", "--against", "stored", "--run", "run", "--rows", 1)
    assert "kept by stored only: 0" in text
    assert "6 rows of 3 groups; nothing is written" in text
    with Buffer(house / "buffer", read_only=True) as buffer:
        assert buffer.counts() == before


@pytest.mark.slow
def test_dry_run_of_some_groups_with_an_override(house: Path) -> None:
    told = rft(
        "dry-run", house / "strict.yaml", "stages.0.groups_per_step=1", "--where", "reward is null", "--json"
    )
    value = json.loads(told)
    assert (value["groups"], value["first"]["rows"], value["first"]["kept"]) == (1, 2, 0)


@pytest.mark.slow
def test_dry_run_of_a_sink_is_refused_and_writes_nothing(house: Path) -> None:
    sink = f"experience_ops=[{{lancedb_write_mapper: {{uri: {house}/out}}}}]"
    assert "a dry run writes nothing" in rft("dry-run", house / "strict.yaml", sink, code=2)
    text = RECIPE.format(root=house, operators=f"- lancedb_write_mapper: {{uri: {house}/out}}")
    (house / "sink.yaml").write_text(text)
    told = rft("dry-run", house / "strict.yaml", "--against", house / "sink.yaml", code=2)
    assert "a dry run writes nothing" in told
    assert not (house / "out").exists()


@pytest.mark.slow
def test_feedback_then_readmission_then_nothing_new(house: Path) -> None:
    with Buffer(house / "buffer", read_only=True) as buffer:
        ids = buffer.read("experiences", ["experience_id"]).column(0).to_pylist()
    common = ("--buffer", house / "buffer")
    one = ("feedback", "add", *common, "--experience", ids[4], "--value", "1", "--author", "me")
    assert rft(*one).strip() == "stored"
    readmit = ("readmit", house / "lenient.yaml", *common, "--run", "run", "--as", "book", "--json")
    value = json.loads(rft(*readmit))
    assert (value["rejected"], value["admitted"], value["rows"]) == (2, 2, 4)
    again = json.loads(rft(*readmit))
    assert (again["admitted"], again["already"]) == (0, 2)


EXPLORING = """\
recipe: 1
name: exploring
mode: eval
run_dir: {root}/exploring
buffer: {{uri: {root}/buffer}}
models: [{root}/model]
tasks: [{{name: arith, source: {{use: jsonl, path: tasks.jsonl}}, heldout: 1.0}}]
explorer:
  engine: {{use: transformers}}
  group_size: 2
  max_tokens: 8
  reward: [{{use: exact_answer, args: {{marker: group}}}}]
evaluation: {{limit: 1}}
"""


@pytest.mark.slow
def test_rescore_then_readmit_by_the_new_version(house: Path) -> None:
    tasks = [Task("arith", ({"role": "user", "content": f"question {n}"},), answer=f"{n}") for n in range(2)]
    with Buffer(house / "buffer") as buffer:
        buffer.add_tasks(tasks)
        explore(buffer, [[0.0, 0.0], [0.0, 0.0]], run_id="other", tasks=tasks)
    (house / "exploring.yaml").write_text(EXPLORING.format(root=house))
    common = ("--run", "other", "--as", "exact")
    text = rft("rescore", house / "exploring.yaml", *common, "--shard", "1/1")
    assert "scored now                    4  (4 other than the stored reward)" in text
    value = json.loads(rft("rescore", house / "exploring.yaml", *common, "--json"))
    assert (value["before"], value["scored"], value["key"]) == (4, 0, "reward@exact")
    out = house / "scores.jsonl"
    rft("rescore", house / "exploring.yaml", "--run", "other", "--as", "more", "--out", out)
    assert len(out.read_text().splitlines()) == 4
    join = "  - feedback_mapper: {key: reward@exact, how: mean, replace: true}\n"
    (house / "new.yaml").write_text(RECIPE.format(root=house, operators=join + LENIENT.partition("\n")[2]))
    readmitted = json.loads(rft("readmit", house / "new.yaml", "--run", "other", "--all", "--json"))
    assert (readmitted["rejected"], readmitted["admitted"], readmitted["book"]) == (2, 2, "other-readmitted")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--shard", "3/2"], "--shard is '3/2'; wanted a number and a count"),
        ([], "has no 'explorer.reward' to score by"),
    ],
)
def test_mistakes_of_a_rescoring(house: Path, arguments: list[str], what: str) -> None:
    assert what in rft("rescore", house / "strict.yaml", *arguments, code=2)


@pytest.mark.slow
def test_feedback_that_goes_back_to_an_earlier_value_is_new(house: Path) -> None:
    with Buffer(house / "buffer", read_only=True) as buffer:
        name = buffer.read("experiences", ["experience_id"]).column(0)[0].as_py()
    for value in "101":
        rft(*ADD[:2], "--experience", name, *ADD[4:], "--buffer", house / "buffer", "--value", value)
    with Buffer(house / "buffer", read_only=True) as buffer:
        assert fold(feedback_about(buffer, "reward", [name]), "last").values.tolist() == [1.0]
        assert buffer.counts()["feedback"] == 3


@pytest.mark.slow
def test_what_an_error_quotes_does_not_act_on_the_terminal(house: Path) -> None:
    file = house / "said.jsonl"
    file.write_text(json.dumps({"evil\x1b[31m\x9b2J\ud800": 1}) + "\n")
    told = rft("feedback", "import", file, "--buffer", house / "buffer", code=1)
    assert "said.jsonl:1: unknown field 'evil\\x1b[31m\\x9b2J\\ud800'" in told
    assert len(told.strip().split("\n")) == 3, "two lines of the message, one of help"
    call = (*ADD[:4], "--buffer", house / "buffer", "--author", "me\udc80", "--value", 1)
    assert "--author is 'me\\udc80', which is not Unicode" in rft(*call, code=1)


@pytest.mark.slow
def test_feedback_of_a_file(house: Path) -> None:
    with Buffer(house / "buffer", read_only=True) as buffer:
        ids = buffer.read("experiences", ["experience_id"]).column(0).to_pylist()
    file = house / "said.jsonl"
    file.write_text("".join(json.dumps({"experience_id": i, "key": "score", "value": 2}) + "\n" for i in ids))
    call = ("feedback", "import", file, "--buffer", house / "buffer", "--author", "me")
    assert rft(*call).strip() == "6 read, 6 new"
    assert json.loads(rft(*call, "--json")) == {"read": 6, "new": 0}


@pytest.mark.slow
def test_label_studio_there_and_back(house: Path) -> None:
    common = ("--buffer", house / "buffer")
    rft("label-studio", "export", house / "tasks.json", *common, "--kind", "pairwise", "--run", "run")
    tasks = json.loads((house / "tasks.json").read_text())
    for task in tasks:
        result = {"from_name": "preference", "type": "pairwise", "value": {"selected": "left"}}
        task["annotations"] = [{"completed_by": 1, "result": [result]}]
    (house / "done.json").write_text(json.dumps(tasks))
    assert "3 new preference pairs" in rft("label-studio", "import", house / "done.json", *common)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["dry-run", str(Path(__file__).parents[3] / "recipes" / "gsm8k_data.yaml")],
            2,
            "has no 'experience_ops' to try",
        ),
        (["dry-run", "{house}/strict.yaml", "--where", "rewrd = 1"], 2, "no column 'rewrd'"),
        (["dry-run", "{house}/strict.yaml", "--run", "nobody"], 2, "no rollout of a run 'nobody'"),
        (["dry-run", "{house}/strict.yaml", "--against", "nowhere.yaml"], 2, "no recipe at nowhere.yaml"),
        (["dry-run", "{house}/strict.yaml", "--buffer", "{house}/none"], 2, "there is no buffer at"),
        (
            ["dry-run", "{house}/strict.yaml", "experience_ops=[{{reward_rang_filter: {{}}}}]"],
            2,
            "did you mean 'reward_range_filter'",
        ),
        (["readmit", "{house}/strict.yaml", "--run", "nobody"], 2, "no group of a run 'nobody'"),
        (["readmit", "{house}/strict.yaml", "--run", "run", "--as", "run"], 2, "that explored"),
        ([*ADD, "--buffer", "{house}/buffer"], 2, "feedback says nothing"),
        ([*ADD, "--buffer", "{house}/buffer", "--value", "1"], 1, "which is not stored"),
        ([*ADD, "--trajectory", "x", "--buffer", "{house}/buffer", "--value", "1"], 2, "about one row"),
        (
            [*ADD[:2], "--trajectory", "x", "--author", "me", "--buffer", "{house}/buffer", "--value", "1"],
            1,
            "0 stored rollouts are trajectory 'x'",
        ),
        (["feedback", "import", "nowhere.jsonl", "--buffer", "{house}/buffer"], 2, "there is no file"),
        ([*ADD, "--buffer", "{house}/none", "--value", "1"], 2, "there is no buffer at"),
        (["label-studio", "import", "nowhere.json", "--buffer", "{house}/buffer"], 2, "there is no file"),
        (["annotate", "--buffer", "{house}/none", "--author", "me"], 2, "there is no buffer at"),
    ],
)
def test_bad_usage_is_one_clear_error(house: Path, arguments: list[str], code: int, message: str) -> None:
    assert message in rft(*(text.format(house=house) for text in arguments), code=code)


@pytest.mark.slow
def test_writing_commands_wait_for_the_owner(house: Path) -> None:
    with Buffer(house / "buffer"):
        told = rft("readmit", house / "strict.yaml", "--run", "run", code=4)
        assert "owned by another process" in told
        rft("dry-run", house / "strict.yaml")
