"""One rollout as a person reads it: messages, images, tool calls, tokens, and what is kept beside."""

import html
import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.canonical import bytes_id
from rft_data.core.images import image_part
from rft_data.core.rows import Experience
from rft_data.web.app import make_app
from rft_data.web.conversation import Call, conversation
from rft_data.web.overlay import Facts, Overlay, tokens
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience
from tests.rft_data.web.test_guard import HOSTILE, elements

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
SVG = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    place = tmp_path_factory.mktemp("rollout") / "buffer"
    with Buffer(place) as buffer:
        good = buffer.add_payload(PNG, "text/html")
        bad = buffer.add_payload(SVG, "image/png")
        messages = [
            {
                "role": "user",
                "content": [{"type": "text", "text": "look"}, image_part(good), image_part(bad)],
            },
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": "http://evil.example/x"}}],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "let me think",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "add", "arguments": '{"a": 1, "b": [2]}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
        buffer.append(
            [
                make_experience(
                    messages=messages,
                    prompt_messages=2,
                    payloads=(good, bad),
                    environment="lake-3",
                    metadata={"end": "finished", "environment_state": {"board": "SF"}, "turns": 1},
                    teacher_logprobs=[0.0, 0.0, -0.5, -0.5],
                    version_spans=((3, 2, 3), (4, 3, 4)),
                    version_max=4,
                )
            ]
        )
    return TestClient(make_app(Subjects([str(place)]), None, "f"), raise_server_exceptions=False)


@pytest.mark.slow
def test_images_are_what_their_bytes_say(page: TestClient) -> None:
    text = page.get("/s/buffer/rows/0").text
    links = set(re.findall(r'<img src="([^"]+)"', text))
    assert links == {f"/s/buffer/payloads/{bytes_id(data)}" for data in (PNG, SVG)}
    assert 'src="http' not in text
    assert "evil.example/x" in text
    shown = page.get(f"/s/buffer/payloads/{bytes_id(PNG)}")
    assert (shown.status_code, shown.content, shown.headers["content-type"]) == (200, PNG, "image/png")
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in shown.headers["content-security-policy"]
    hidden = page.get(f"/s/buffer/payloads/{bytes_id(SVG)}")
    assert hidden.status_code == 400
    assert b"onload" not in hidden.content


@pytest.mark.parametrize(
    "name", ["..%2f..%2fetc%2fpasswd", "A" * 32, "0" * 31, "0" * 33, "%00" * 32, "0" * 31 + "%0a"]
)
def test_a_payload_is_named_by_its_hash_alone(page: TestClient, name: str) -> None:
    assert page.get(f"/s/buffer/payloads/{name}").status_code in (404, 422)
    assert page.get(f"/s/buffer/payloads/{'0' * 32}").status_code == 404


def test_large_payloads_are_not_read(page: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rft_data.web.views.payloads._MOST_BYTES", len(PNG) - 1)
    answer = page.get(f"/s/buffer/payloads/{bytes_id(PNG)}")
    assert answer.status_code == 400
    assert "28 bytes" in answer.text


def test_tool_calls_and_their_results_are_readable(page: TestClient) -> None:
    text = html.unescape(page.get("/s/buffer/rows/0").text)
    assert re.search(
        r"calls <code>add</code>.*?c1.*?>a</p><pre>1</pre>.*?>b</p><pre>\[2\]</pre>", text, re.DOTALL
    )
    assert "tool answers <code>c1</code>" in text
    assert "<summary>thinking</summary><pre>let me think</pre>" in text
    assert "<summary>environment</summary><pre>lake-3</pre>" in text
    assert re.search(r'<summary>environment_state</summary><pre>{\s+"board": "SF"\s+}</pre>', text)


@pytest.mark.parametrize(
    "calls",
    [None, "text", [], [None], [7], [{}], [{"function": 3}], [{"function": {"name": 3}}], [{"name": "f"}],
     [{"function": {"name": "f", "arguments": "[" * 200_000}}],
     [{"function": {"name": "f", "arguments": "{"}}],
     [{"function": {"name": "f", "arguments": [1]}, "id": ["x"]}]],
)  # fmt: skip
def test_calls_of_any_form_are_shown(calls: object) -> None:
    [said] = conversation([{"role": "assistant", "tool_calls": calls}], 0)
    assert len(said.calls) == (len(calls) if isinstance(calls, list) else 0)


def test_arguments_that_are_no_json_are_one_text() -> None:
    [said] = conversation(
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{a"}}]}], 0
    )
    assert said.calls == (Call("f", (("", "{a"),), ""),)


KNOWN = Facts(
    mask=[0, 0, 1, 0, 1, 1],
    logprobs=[0.0, 0.0, -0.1, 0.0, -7.0, -2.0],
    teacher=[0.0, 0.0, -0.1, 0.0, -1.0, -9.0],
    advantage=[0.0, 0.0, 2.0, 0.0, -1.0, 0.0],
    spans=[{"version": 3, "start": 2, "end": 4}, {"version": 5, "start": 4, "end": 6}],
    first=2,
    trained=[-0.1, 0.0, -6.5, -2.25],
    entropies=[0.0, 9.0, 0.9, 6.9],
)


@pytest.mark.parametrize(
    ("overlay", "styles"),
    [
        (Overlay.PROBABILITY, ["l0", "l0", "s l0", "l0", "s l8", "s l2"]),
        (Overlay.ADVANTAGE, ["bad l0", "bad l0", "s good l8", "bad l0", "s bad l4", "s bad l0"]),
        (Overlay.TEACHER, ["l0", "l0", "s l0", "l0", "s l7", "s l8"]),
        (Overlay.TRAINER, ["l0", "l0", "s l0", "l0", "s l8", "s l4"]),
        (Overlay.ENTROPY, ["l0", "l0", "s l0", "l0", "s l1", "s l8"]),
        (Overlay.VERSION, ["l0", "l0", "s v0", "v0", "s v1", "s v1"]),
        (Overlay.MASK, ["l0", "l0", "s l4", "l0", "s l4", "s l4"]),
    ],
)
def test_colours_say_what_is_stored(overlay: Overlay, styles: list[str]) -> None:
    found = tokens(range(6), 2, KNOWN, overlay, None)
    assert [one.style for one in found] == styles
    assert found[4].title == (
        "token 4, id 4; probability 0.0009119, logprob -7.0000; teacher +6.0000 nats; trainer +0.5000 nats; "
        "entropy 0.9000 nats; advantage -1; policy version 5"
    )
    assert found[3].title.endswith("in no loss")


def test_overlays_are_offered_where_something_is_stored(page: TestClient) -> None:
    text = page.get("/s/buffer/rows/0?overlay=version").text
    assert set(re.findall(r'href="\?overlay=(\w+)"', text)) == {"probability", "teacher", "mask"}
    assert page.get("/s/buffer/rows/0?overlay=mood").status_code == 422


@pytest.mark.slow
def test_whatever_a_model_calls_acts_on_nothing(tmp_path: Path) -> None:
    said = ("plain", *HOSTILE[:-1])
    with Buffer(tmp_path / "buffer") as buffer:
        buffer.append([saying(number, text) for number, text in enumerate(said)])
    page = TestClient(make_app(Subjects([str(tmp_path / "buffer")]), None, "f"))
    for path in ("rows/{}", "rows/{}?overlay=mask", "groups/g{}", "experiences?where=seq+=+{}"):
        plain, *others = (elements(page.get(f"/s/buffer/{path.format(n)}").text) for n in range(len(said)))
        for number, other in enumerate(others, 1):
            assert other.found == plain.found, (path, said[number])
            assert not [link for link in other.links if not link.startswith(("/", "?"))]


def saying(number: int, text: str) -> Experience:
    """A rollout with a text wherever a model or its tools may put one."""
    call = {"id": text, "function": {"name": text, "arguments": {text: text, "b": [text]}}}
    return make_experience(
        number,
        experience_id=f"e{number}",
        group_id=f"g{number}",
        messages=(
            {"role": "assistant", "content": text, "tool_calls": [call, text]},
            {"role": "tool", "name": text, "content": [{"type": "image", "image": text}]},
        ),
        completion_text=text,
        environment=text.replace("\x00", ""),
        metadata={text: {"a": text}},
        finish_reason=text[:50],
    )
