"""The table of experiences: what narrows it, its orders, searches, and the files of it."""

import csv
import html
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.rows import now
from rft_data.core.schema import TABLES
from rft_data.exchange.formats import export
from rft_data.reading.search import embed, index_text
from rft_data.web.app import make_app
from rft_data.web.listing import listing
from rft_data.web.reward_spread import histogram
from rft_data.web.row_choice import chosen, joined, pieces
from rft_data.web.row_order import Order, ordered
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience

ROWS = 120
FORMULA = "=HYPERLINK('http://evil.example')"


def row(number: int) -> object:
    said = ("red apples", "green pears", "blue plums")[number % 3] if number else FORMULA
    length = 1 + number % 7
    return make_experience(
        number,
        experience_id=f"e{number}",
        group_id=f"g{number // 4}",
        reward=None if number % 10 == 9 else (number * 37 % 11) / 8,
        completion_text=f"{said} {number}" if number else said,
        messages=({"role": "user", "content": "fruit?"}, {"role": "assistant", "content": said}),
        prompt_messages=1,
        version_min=number // 30,
        version_max=number // 30,
        token_ids=[5] * (2 + length),
        action_mask=[0, 0, *[1] * length],
        logprobs=[0.0, 0.0, *[-0.5] * length],
        version_spans=((number // 30, 2, 2 + length),),
        source="eval" if number % 40 == 39 else "rollout",
    )


def judged(seqs: list[int], verdict: str, advantage: Callable[[int], list[float] | None]) -> pa.Table:
    rows = [
        {
            "seq": seq,
            "experience_id": f"e{seq}",
            "pipeline_hash": "p",
            "verdict": verdict,
            "dropped_by": "" if verdict == "kept" else "length_filter",
            "reason": "",
            "advantage": advantage(seq),
            "shaped_reward": None,
            "masked": False,
            "stats": {},
            "created_at": now(),
        }
        for seq in seqs
    ]
    return pa.Table.from_pylist([one | {"stats": "{}"} for one in rows], schema=TABLES["annotations"][0])


def fruits(texts: list[str]) -> np.ndarray:
    """One number for each of three fruits."""
    return np.array([[word in text for word in ("apples", "pears", "plums")] for text in texts], np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("search") / "fruit"
    with Buffer(place) as buffer:
        assert buffer.append([row(number) for number in range(ROWS)]).stored == ROWS  # type: ignore[list-item]
        buffer.annotate(judged(list(range(100)), "dropped", lambda seq: None))
        buffer.annotate(judged(list(range(0, 100, 2)), "kept", lambda seq: [seq / 50 - 1, seq / 25 - 2]))
    return place


@pytest.fixture(scope="module")
def fruit(folder: Path) -> Iterator[TestClient]:
    with Subjects([str(folder)]) as subjects:
        yield TestClient(make_app(subjects, None, "f"), follow_redirects=False)


@pytest.fixture(scope="module")
def stored(folder: Path) -> list[dict[str, object]]:
    with Buffer(folder, read_only=True) as buffer:
        return buffer.read("experiences").to_pylist()


def seqs_of(text: str) -> list[int]:
    return [int(seq) for seq in re.findall(r'href="/s/fruit/rows/(\d+)"', text)]


def all_pages(fruit: TestClient, query: str) -> list[int]:
    found: list[int] = []
    while True:
        answer = fruit.get(f"/s/fruit/experiences{query}")
        assert answer.status_code == 200, answer.text
        found += seqs_of(answer.text)
        further = re.search(r'rel="next" href="([^"]+)"', answer.text)
        if further is None:
            return found
        query = html.unescape(further[1])


@pytest.mark.slow
def test_what_narrows_the_table_is_shown_as_parts_that_can_be_taken_away(fruit: TestClient) -> None:
    where = "reward >= 0.5 and (version_min = 1 or version_min = 2) and not source in ('eval', 'it''s')"
    text = fruit.get("/s/fruit/experiences", params={"where": where, "verdict": "kept"}).text
    chips = re.findall(r'<li><span>(.*?)</span> <a href="([^"]+)"', text)
    assert [html.unescape(chip) for chip, _ in chips] == [
        "reward >= 0.5",
        "version_min = 1 or version_min = 2",
        "not source in ('eval', 'it''s')",
        "verdict: kept",
    ]
    left = [parse_qs(urlsplit(html.unescape(link)).query) for _, link in chips]
    assert left[0]["where"] == ["(version_min = 1 or version_min = 2) and not source in ('eval', 'it''s')"]
    assert "verdict" in left[0]
    assert "verdict" not in left[3]


def test_parts_of_a_filter_are_the_filter() -> None:
    for text in (
        "reward > 1e-05 and (taskset = 'a' and (turn = 1 or turn is null))",
        "not (a = 1)",
        "a in (1,'b')",
    ):
        assert pieces(joined(pieces(text))) == pieces(text)
    assert joined([]) == ""


@pytest.mark.slow
def test_the_form_writes_the_typed_filter(fruit: TestClient, stored: list[dict[str, object]]) -> None:
    form = {
        "where": "turn = 0",
        "reward_from": "0.25",
        "reward_to": "1",
        "taskset": "arith",
        "source": "rollout",
        "finish_reason": "stop",
        "version_from": "1",
        "version_to": "2",
        "order": "best",
        "verdict": "",
    }
    answer = fruit.get("/s/fruit/experiences/narrow", params=form)
    assert answer.status_code == 303
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    assert query["where"] == [
        "turn = 0 and reward >= 0.25 and reward <= 1.0 and taskset = 'arith' and source = 'rollout' and "
        "finish_reason = 'stop' and version_min >= 1 and version_max <= 2"
    ]
    assert query["order"] == ["best"]
    wanted = {
        one["seq"]
        for one in stored
        if one["reward"] is not None
        and 0.25 <= one["reward"] <= 1  # type: ignore[operator]
        and one["source"] == "rollout"
        and one["version_min"] in (1, 2)
    }
    assert set(all_pages(fruit, "?" + urlsplit(answer.headers["location"]).query)) == wanted
    assert fruit.get("/s/fruit/experiences/narrow?where=nonsense").status_code == 404
    assert fruit.get("/s/fruit/experiences/narrow?reward_from=much").status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "wanted"),
    [
        ("kept", set(range(0, 100, 2))),
        ("dropped", set(range(1, 100, 2))),
        ("none", set(range(100, ROWS))),
        ("quarantined", set()),
    ],
)
def test_the_newest_verdict_narrows(fruit: TestClient, verdict: str, wanted: set[int]) -> None:
    assert set(all_pages(fruit, f"?verdict={verdict}")) == wanted
    assert set(all_pages(fruit, f"?verdict={verdict}&order=longest")) == wanted


def by_key(order: Order, one: dict[str, object]) -> float | None:
    if "advantage" in order:
        seq = one["seq"]
        return float(np.mean([seq / 50 - 1, seq / 25 - 2])) if seq < 100 and seq % 2 == 0 else None  # type: ignore[operator]
    if order in (Order.LONGEST, Order.SHORTEST):
        return sum(one["action_mask"])  # type: ignore[arg-type]
    return one["reward" if order in (Order.BEST, Order.WORST) else "version_min"]  # type: ignore[return-value]


@pytest.mark.slow
@pytest.mark.parametrize("order", [order for order in Order if order is not Order.NEWEST])
def test_orders_go_on_over_pages(folder: Path, stored: list[dict[str, object]], order: Order) -> None:
    up = order in (Order.WORST, Order.SHORTEST, Order.EARLIEST_VERSION, Order.LEAST_ADVANTAGE)
    known = [(value, one["seq"]) for one in stored if (value := by_key(order, one)) is not None]
    wanted = [seq for _, seq in sorted(known, key=lambda pair: ((1 if up else -1) * pair[0], -pair[1]))]  # type: ignore[operator]
    found, after = [], ""
    with Buffer(folder, read_only=True) as buffer:
        while True:
            page = ordered(buffer, chosen(""), order, after, 7)
            found += [one["seq"] for one in page.rows]
            assert page.without == ROWS - len(known)
            if page.after is None:
                break
            after = page.after
    assert found == wanted


@pytest.mark.slow
def test_rows_that_come_meanwhile_move_no_page(tmp_path: Path) -> None:
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append([make_experience(number, reward=number / 4) for number in range(8)])
        first = ordered(buffer, chosen(""), Order.BEST, "", 4)
        buffer.append([make_experience(8, reward=9.0), make_experience(9, reward=0.1)])
        second = ordered(buffer, chosen(""), Order.BEST, first.after or "", 10)
    assert [one["seq"] for one in first.rows] == [7, 6, 5, 4]
    assert [one["seq"] for one in second.rows] == [3, 2, 1, 9, 0]


@pytest.mark.slow
def test_costly_filters_look_at_the_newest_rows_and_say_so(
    fruit: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.row_choice.WINDOW", 30)
    monkeypatch.setattr("rft_data.web.row_order.WINDOW", 30)
    with Buffer(folder, read_only=True) as buffer:
        spread = histogram(buffer, chosen("completion_text contains 'a'"), "")
        assert spread.newest == 30
        assert sum(one.count for one in spread.bins) <= 30
        assert histogram(buffer, chosen("reward >= 0"), "").newest is None
        assert {one["seq"] for one in ordered(buffer, chosen(""), Order.LONGEST, "").rows} == set(
            range(90, ROWS)
        )
        assert ordered(buffer, chosen(""), Order.MOST_ADVANTAGE, "").newest == 30
        monkeypatch.setattr("rft_data.web.listing._SEARCH_S", 0)
        assert listing(buffer, chosen("completion_text contains 'nothing'"), None).rows == []
    text = fruit.get("/s/fruit/experiences?where=completion_text+contains+%27a%27").text
    assert "of the newest 30 rows" in text
    assert "Of the newest 30 rows." in fruit.get("/s/fruit/experiences?order=longest").text


@pytest.mark.slow
def test_words_and_meaning_are_searched(tmp_path: Path, folder: Path) -> None:
    own = tmp_path / "fruit"
    with Buffer(own) as buffer:
        buffer.append([row(number) for number in range(ROWS)])  # type: ignore[list-item]
    page = TestClient(make_app(Subjects([str(own)]), None, "f"))
    missing = html.unescape(page.get("/s/fruit/experiences?words=pears").text)
    assert f"rft buffer search {own} pears --index" in missing
    missing = html.unescape(page.get("/s/fruit/experiences?like=1").text)
    assert f"rft buffer search {own} --like 1 --model MODEL --index" in missing
    with Buffer(own) as buffer:
        index_text(buffer)
        embed(buffer, fruits, name="toy")
    pears = set(range(1, ROWS, 3))
    hits = seqs_of(page.get("/s/fruit/experiences?words=PEARS").text)
    assert len(hits) == len(pears)
    assert set(hits) == pears
    late = seqs_of(page.get("/s/fruit/experiences?words=pears&where=seq+>=+100").text)
    assert set(late) == {seq for seq in pears if seq >= 100}
    near = page.get("/s/fruit/experiences?like=1").text
    assert set(seqs_of(near)[: len(pears) - 1]) == pears - {1}
    assert "By the vectors of toy" in near
    narrowed = page.get("/s/fruit/experiences?like=1&where=seq+<+30").text
    assert set(seqs_of(narrowed)[:9]) == {seq for seq in pears - {1} if seq < 30}
    assert "has no vector by &#39;other&#39;" in page.get("/s/fruit/experiences?like=1&model=other").text
    assert 'href="/s/fruit/experiences?like=1"' in page.get("/s/fruit/rows/1").text


@pytest.mark.slow
def test_many_rows_outside_the_index_are_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.searching.WINDOW", 1)
    own = tmp_path / "fruit"
    with Buffer(own) as buffer:
        buffer.append([row(number) for number in range(10)])  # type: ignore[list-item]
        index_text(buffer)
        buffer.append([row(number) for number in range(10, 20)])  # type: ignore[list-item]
    answer = (
        TestClient(make_app(Subjects([str(own)]), None, "f")).get("/s/fruit/experiences?words=pears").text
    )
    assert set(seqs_of(answer)) == {1, 4, 7}
    assert "10 newer rows are not in the index" in answer


@pytest.mark.slow
def test_files_hold_what_is_shown(
    fruit: TestClient, folder: Path, tmp_path: Path, stored: list[dict[str, object]]
) -> None:
    query = "where=" + quote("reward > 0.5") + "&order=worst"
    shown = all_pages(fruit, f"?{query}")
    table = fruit.get(f"/s/fruit/experiences/file?{query}&format=csv")
    assert table.headers["content-disposition"] == 'attachment; filename="experiences.csv"'
    assert [int(one["seq"]) for one in csv.DictReader(io.StringIO(table.text))] == shown
    lines = fruit.get(f"/s/fruit/experiences/file?{query}&format=jsonl").text.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == shown
    texts = {one["seq"]: one["completion_text"] for one in stored}
    assert [json.loads(line)["completion_text"] for line in lines] == [texts[seq] for seq in shown]
    with Buffer(folder, read_only=True) as buffer:
        for name in ("rft", "sft", "sft-messages", "kto", "dpo"):
            target = tmp_path / f"{name}.jsonl"
            export(buffer, target, format=name, table="experiences", where=chosen("reward > 0.5").where)
            got = fruit.get(f"/s/fruit/experiences/file?{query}&format={name}")
            assert got.status_code == 200, got.text
            assert got.text == target.read_text()
    assert fruit.get("/s/fruit/experiences/file?format=sft&where=source+%3D+%27eval%27").status_code == 400
    assert fruit.get("/s/fruit/experiences/file?format=exe").status_code == 422


@pytest.mark.slow
def test_a_file_leaves_nothing_behind_however_it_is_asked_for(
    fruit: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    whole = fruit.get("/s/fruit/experiences/file?format=sft")
    assert int(whole.headers["content-length"]) == len(whole.content)
    for headers in ({"range": "bytes=99999999-"}, {"range": "bytes=x"}, {"range": "bytes=0-3"}):
        assert fruit.get("/s/fruit/experiences/file?format=sft", headers=headers).content
    assert fruit.get("/s/fruit/experiences/file?format=sft&where=source+%3D+%27eval%27").status_code == 400
    assert list(tmp_path.iterdir()) == []


def test_files_are_bounded_and_name_the_command_for_all(
    fruit: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rft_data.web.downloads.MOST_ROWS", 5)
    assert len(fruit.get("/s/fruit/experiences/file").text.splitlines()) == 5
    text = html.unescape(fruit.get("/s/fruit/experiences?where=reward+%3E+0.5").text)
    assert f"rft buffer export {folder} FILE.jsonl --format sft --where 'reward > 0.5'" in text


def test_no_text_of_a_model_is_a_formula(fruit: TestClient) -> None:
    [first] = csv.DictReader(
        io.StringIO(fruit.get("/s/fruit/experiences/file?where=seq+%3D+0&format=csv").text)
    )
    assert first["completion_text"] == f"'{FORMULA}"


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("order=cheapest", 422, "query.order"),
        ("order=best&after=here", 400, "'here' is no place in this order"),
        ("verdict=liked", 422, "query.verdict"),
        ("like=-1", 422, "query.like"),
        ("wher=1", 422, "query.wher"),
        ("words=" + "x" * 2001, 422, "query.words"),
        ("where=%27", 400, "a quote is not closed"),
    ],
)
def test_what_cannot_be_asked_is_said_in_words(fruit: TestClient, query: str, status: int, text: str) -> None:
    answer = fruit.get(f"/s/fruit/experiences?{query}")
    assert answer.status_code == status
    assert text in html.unescape(answer.text)


@pytest.mark.slow
def test_a_typed_text_is_searched_for_by_the_model_of_the_runs_recipe(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import BoW

    model = tmp_path / "fruits"
    SentenceTransformer(modules=[BoW(vocab=["apples", "pears", "plums"])]).save(str(model))
    run = tmp_path / "run"
    with Buffer(run / "buffer") as buffer:
        buffer.append([row(number) for number in range(ROWS)])  # type: ignore[list-item]
        embed(buffer, str(model))
        embed(buffer, fruits, name="toy/of-nobody")
    operators = [{"semantic_diversity_filter": {"model": str(model)}}, {"x": {"model": "toy/of-nobody"}}]
    recipe = {"name": "run", "mode": "online", "experience_ops": operators}
    (run / "recipe.json").write_text(json.dumps(recipe))
    with Subjects([str(run), str(run / "buffer")]) as subjects:
        page = TestClient(make_app(subjects, None, "f"))
        assert 'name="means"' in page.get("/s/run/experiences").text
        assert 'name="means"' not in page.get("/s/buffer/experiences").text
        pears = set(range(1, ROWS, 3))
        found = page.get("/s/run/experiences?means=pears&where=seq+<+30")
        assert found.status_code == 200, found.text
        near = [int(seq) for seq in re.findall(r"/s/run/rows/(\d+)\"", found.text)]
        assert set(near[:10]) == {seq for seq in pears if seq < 30}
        assert f"By the vectors of {model}" in html.unescape(found.text)
        assert "No model is here" in page.get("/s/run/experiences?means=pears&model=toy/of-nobody").text
        assert page.get("/s/run/experiences/file?means=pears&model=toy/of-nobody").status_code == 400
        file = page.get("/s/run/experiences/file?means=pears&where=seq+<+30&format=jsonl")
        assert [json.loads(line)["seq"] for line in file.text.splitlines()] == near
        (model / "modules.json").unlink()
        assert "No model is here" in page.get("/s/run/experiences?means=plums").text, "nothing is downloaded"
