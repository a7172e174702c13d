"""Lineage both ways: from steps and checkpoints to rows, and from a row to all that came of it."""

import html
import re
import shutil
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.rows import Task, now
from rft_data.reading.descent import checkpoint_steps, checkpoints, descent, leases_of_step
from rft_data.reading.lineage import lineage, trained_on
from rft_data.web.app import make_app
from rft_data.web.subjects import Subjects
from rft_data.web.timeline import timeline

CONSUMER = "<b>rival</b>"


def event(kind: str, step: int, seqs: list[int], consumer: str = CONSUMER) -> dict[str, object]:
    return {
        "event_id": f"{kind}-{consumer}-{step}",
        "kind": kind,
        "run_id": "small",
        "consumer": consumer,
        "step": step,
        "epoch": 1,
        "version": 0,
        "seqs": seqs,
        "group_ids": [f"g{seq}" for seq in seqs],
        "digest": "",
        "reason": "",
        "created_at": now(),
    }


def consumed(consumer: str, step: int, checkpoint: int) -> dict[str, object]:
    return {
        "lease_id": f"small/{consumer}/{step}",
        "run_id": "small",
        "consumer": consumer,
        "step": step,
        "checkpoint_step": checkpoint,
        "created_at": now(),
    }


@pytest.fixture(scope="module")
def run(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose second step had two consumers, and whose third was held by a later checkpoint."""
    folder = Path(shutil.copytree(runs / "run", tmp_path_factory.mktemp("lineage") / "run"))
    with Buffer(folder / "buffer") as buffer:
        first = trained_on(buffer, "small", 0)["experience_id"][0].as_py()
        buffer.add_rows(
            "leases", [event("grant", 1, [101, 102]), event("grant", 0, [103]), event("release", 0, [103])]
        )
        buffer.add_rows("consumed", [consumed(CONSUMER, 1, 2), consumed("trainer", 2, 3)])
        leased = trained_on(buffer, "small", 0).slice(0, 1).to_pylist()[0]
        of_row = {"run_id": "small", "consumer": "trainer", "seq": leased["seq"]}
        for step, value in ((0, -1.5), (0, -0.5), (7, -9.0)):  # taken again; and it was not leased for step 7
            values = {"logprobs": [value, value], "entropies": [0.25, 0.5]}
            buffer.add_rows("trained_tokens", [{**of_row, "step": step, **values}])
        made = Task("variants", ({"role": "user", "content": "?"},), parent_experience_id=first)
        assert buffer.add_tasks([made]) == 1
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> TestClient:
    return TestClient(make_app(Subjects([str(run), str(run / "buffer")]), None, "f"))


def rows(text: str) -> set[int]:
    return {int(seq) for seq in re.findall(r'href="/s/run/rows/(\d+)"', text)}


@pytest.mark.slow
def test_a_step_of_several_consumers_shows_each(page: TestClient, run: Path) -> None:
    with Buffer(run / "buffer", read_only=True) as buffer:
        ours = set(trained_on(buffer, "small", 1, "trainer")["seq"].to_pylist())
        assert [one.consumer for one in leases_of_step(buffer, "small", 0)] == ["trainer"], "one was released"
    assert rows(page.get("/s/run/steps/1?consumer=trainer").text) == ours
    text = page.get("/s/run/steps/1").text
    assert rows(text) == {101, 102}
    assert "2 consumers" in text
    assert 'href="/s/run/checkpoints/2"' in text
    link = re.search(r'href="(\?consumer=trainer)"', text)
    assert link is not None
    back = page.get("/s/run/steps/1?consumer=trainer").text
    [other] = re.findall(r'href="(\?consumer=[^"]+)"', back)
    assert rows(page.get(f"/s/run/steps/1{html.unescape(other)}").text) == {101, 102}
    missing = page.get("/s/run/steps/1?consumer=nobody")
    assert missing.status_code == 404
    assert "it has &lt;b&gt;rival&lt;/b&gt;, trainer" in missing.text


@pytest.mark.slow
def test_tokens_show_what_the_trainer_found(page: TestClient, run: Path) -> None:
    with Buffer(run / "buffer", read_only=True) as buffer:
        [seq] = set(buffer.read("trained_tokens", ["seq"])["seq"].to_pylist())
        row = buffer.take([seq]).to_pylist()[0]
    text = page.get(f"/s/run/rows/{seq}?overlay=trainer").text
    shown = [f"trainer {-0.5 - logprob:+.4f} nats" for logprob in row["logprobs"][row["prompt_length"] :]]
    assert [one in text for one in shown[:2]] == [True, True]
    assert re.findall(r"entropy (\S+) nats", text) == ["0.2500", "0.5000"], "of two tokens only"
    assert "?overlay=entropy" in text


@pytest.mark.slow
def test_a_checkpoint_leads_to_the_steps_that_made_it(page: TestClient, run: Path) -> None:
    text = page.get("/s/run/checkpoints/2").text
    assert re.findall(r'href="/s/run/steps/(\d+)\?', text) == ["0", "1", "1"]
    assert 'href="/s/run/checkpoints/3"' in text
    assert re.findall(r">version (\d+)<", text) == ["4", "5"]
    with Buffer(run / "buffer", read_only=True) as buffer:
        assert checkpoints(buffer, "small") == [2, 3]
        [first, *_] = checkpoint_steps(buffer, "small", 2)
        assert list(first.seqs) == trained_on(buffer, "small", 0)["seq"].to_pylist()
    missing = page.get("/s/run/checkpoints/9")
    assert missing.status_code == 404
    assert "no step of run" in missing.text
    assert page.get("/s/buffer/checkpoints/2").status_code == 404


@pytest.mark.slow
def test_a_bad_rollout_leads_to_all_that_was_trained_on_it(page: TestClient, run: Path) -> None:
    with Buffer(run / "buffer", read_only=True) as buffer:
        seq = trained_on(buffer, "small", 0)["seq"][0].as_py()
        found = descent(buffer, lineage(buffer, seq))
        assert [(one.run_id, one.checkpoints) for one in found.runs] == [("small", (2, 3))]
        assert [weights.version for weights in found.runs[0].weights] == [3, 4, 5]
        assert [task.taskset for task in found.tasks] == ["variants"]
        [released] = [103]
        assert descent(buffer, lineage(buffer, released)).runs == ()
        open_step = trained_on(buffer, "small", 3)["seq"][0].as_py()
        [only] = descent(buffer, lineage(buffer, open_step)).runs
        assert (only.checkpoints, only.weights) == ((), ())
    assert f'href="/s/run/rows/{seq}/descent"' in page.get(f"/s/run/rows/{seq}").text
    text = html.unescape(page.get(f"/s/run/rows/{seq}/descent").text)
    assert re.findall(r'href="/s/run/checkpoints/(\d+)"', text) == ["2", "3"]
    assert "run_id%20%3D%20%27small%27%20and%20version_max%20%3E%3D%203" in text
    assert "taskset%20%3D%20%27variants%27" in text
    alone = page.get(f"/s/buffer/rows/{seq}/descent").text
    assert "/s/buffer/checkpoints" not in alone
    assert "Nothing was trained on it" in page.get("/s/run/rows/103/descent").text


@pytest.mark.slow
def test_the_time_line_has_every_stored_moment(page: TestClient, run: Path) -> None:
    with Buffer(run / "buffer", read_only=True) as buffer:
        row = trained_on(buffer, "small", 0).to_pylist()[0]
        line = lineage(buffer, row["seq"])
        moments = timeline(buffer, line, row["created_at"])
        granted = buffer.read("leases", ["created_at", "kind", "step"]).to_pylist()
    [lease] = [one for one in granted if (one["kind"], one["step"]) == ("grant", 0)][:1]
    assert [one.what for one in moments][-2:] == ["leased for step 0 of trainer", "in checkpoint 2"]
    assert moments[-2].at == lease["created_at"]
    words = " ".join(one.what for one in moments)
    for what in (
        f"policy version {row['version_min']} published",
        "sampled and scored",
        "judged: kept",
        "its group closed: arrived",
    ):
        assert what in words
    assert [one.at for one in moments] == sorted(one.at for one in moments)
    assert (moments[0].x, moments[-1].x) == (8, 592)
    assert sum(one.after_s for one in moments) == pytest.approx(
        (moments[-1].at - moments[0].at).total_seconds()
    )
    text = page.get(f"/s/run/rows/{row['seq']}").text
    drawn = re.search(r'<svg class="line".*?</svg>', text, re.DOTALL)
    assert drawn is not None
    assert drawn[0].count("<circle") == len(moments)
