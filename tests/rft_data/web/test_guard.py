"""Who has no token sees nothing; what a model said stays text."""

from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from rft_data.buffer import Buffer
from rft_data.core.rows import Feedback, now
from rft_data.web.app import make_app
from rft_data.web.guard import HEADERS, Guard, cookie_name
from rft_data.web.subjects import Subjects
from tests.rft_data.conftest import make_experience

TOKEN = "of-the-link"  # noqa: S105 - of the tests
COOKIE = cookie_name(TOKEN)
PATHS = (
    "/",
    "/s/buffer",
    "/s/buffer/experiences",
    "/s/buffer/rows/0",
    "/s/buffer/groups/run/g0",
    "/static/page.css",
)
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<svg onload=alert(1)><a href='javascript:alert(1)'>x</a>",
    "</pre></textarea><iframe src=//evil.example>",
    "{{ 7 * 7 }}{% raw %}${7*7}",
    "\x1b[31mred\x1b[0m\x00\x07",
    "\u202eright to left\u2066",
    "&lt;script&gt;&#x3c;b&#x3e;",
    "x" * 1_000_000,
)


class Elements(HTMLParser):
    """The elements of a page with their attributes' names, and all its links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add((tag, *sorted(name for name, _ in attrs)))
        self.links |= {value or "" for name, value in attrs if name in ("href", "src", "action")}


def elements(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    return parser


def guarded(folder: Path) -> TestClient:
    app = Guard(make_app(Subjects([str(folder)]), None, "f"), token=TOKEN, hosts=frozenset(("127.0.0.1",)))
    return TestClient(app, base_url="http://127.0.0.1:8000", follow_redirects=False)


def stored(folder: Path, text: str) -> Path:
    row = make_experience(
        0,
        run_id=text[:200],
        taskset=text[:200],
        task_id=text[:200],
        messages=(
            {"role": text, "content": text},
            {"role": "assistant", "content": [{"type": "text", "text": text}]},
        ),
        completion_text=text,
        unscored_reason=text[:200],
        reward=None,
        reward_parts={text[:200]: 1.0},
    )
    with Buffer(folder) as buffer:
        buffer.append([row])
        buffer.add_feedback(
            [Feedback(row.experience_id, text[:200], "score", 1.0, text.replace("\x00", ""), now())]
        )
    return folder


@pytest.mark.slow
def test_without_the_token_there_is_nothing(tmp_path: Path) -> None:
    page = guarded(stored(tmp_path / "buffer", "hello"))
    for path in PATHS:
        assert page.get(path).status_code == 401
        assert page.get(f"{path}?token=guess").status_code == 401
        assert page.get(path, headers={"cookie": f"{COOKIE}=guess"}).status_code == 401
        assert page.post(path).status_code == 401
    opened = page.get("/s/buffer/experiences?where=reward+is+null&token=" + TOKEN)
    assert opened.status_code == 303
    assert opened.headers["location"] == "/s/buffer/experiences?where=reward+is+null"
    assert "HttpOnly" in opened.headers["set-cookie"]
    assert "SameSite=Strict" in opened.headers["set-cookie"]
    assert (
        page.get("http://127.0.0.1:8000//evil.example/?token=" + TOKEN).headers["location"]
        == "/evil.example/"
    )
    page.cookies.set(COOKIE, TOKEN)
    for path in PATHS:
        answer = page.get(path)
        assert answer.status_code == 200, path
        assert HEADERS.items() <= dict(answer.headers).items()
    assert page.get("/", headers={"host": "evil.example:8000"}).status_code == 421
    assert page.post("/s/buffer/rows/0/say", data={"value": "1", "form_token": "f"}).status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_a_model_said_is_text_and_nothing_else(tmp_path: Path, text: str) -> None:
    pages = [
        guarded(stored(tmp_path / name / "buffer", said)) for name, said in (("a", "hello"), ("b", text))
    ]
    for page in pages:
        page.cookies.set(COOKIE, TOKEN)
    for path in PATHS[:-1]:
        plain, hostile = [page.get(path).text for page in pages]
        assert elements(hostile).found == elements(plain).found
        for link in elements(hostile).links:
            assert link.startswith(("/", "?")), link
            assert not link.startswith("//")
        assert not any(c in hostile for c in "\x1b\x00\x07\u202e\u2066")
        assert len(hostile) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/s/buffer/groups/%E4%B8%AD%3F%23%20x", "/s/buffer/groups/%E4%B8%AD%3F%23%20x"),
        ("/%0d%0aset-cookie:x=y", "/%0D%0Aset-cookie%3Ax%3Dy"),
        ("/%09/evil.example", "/%09/evil.example"),
        ("/%5Cevil.example", "/%5Cevil.example"),
    ],
)
def test_a_link_with_the_token_leads_to_the_same_path(tmp_path: Path, path: str, location: str) -> None:
    page = guarded(stored(tmp_path / "buffer", "hello"))
    answer = page.get(f"{path}?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, location)
    assert [value.split("=")[0] for value in answer.headers.get_list("set-cookie")] == [COOKIE]


@pytest.mark.slow
def test_cookies_of_other_pages_on_this_machine_do_no_harm(tmp_path: Path) -> None:
    page = guarded(stored(tmp_path / "buffer", "hello"))
    for other in ('json={"a":1}', "x@y=1", "a=b c", f"{cookie_name('of-another')}=of-another"):
        for header in (f"{other}; {COOKIE}={TOKEN}", f"{COOKIE}={TOKEN}; {other}"):
            assert page.get("/", headers={"cookie": header}).status_code == 200, header
        assert page.get("/", headers={"cookie": other}).status_code == 401


@pytest.mark.slow
def test_the_port_may_be_left_out_where_it_is_80(tmp_path: Path) -> None:
    page = guarded(stored(tmp_path / "buffer", "hello"))
    page.cookies.set(COOKIE, TOKEN)
    for host, status in (("127.0.0.1", 200), ("127.0.0.1:80", 200), ("evil.example", 421), (":80", 421)):
        assert page.get("/", headers={"host": host}).status_code == status, host
    for host in ("", "127.0.0.1.evil.example", "[::1]", "[::1]:80", "127.0.0.1:80:80"):
        assert page.get("/", headers={"host": host}).status_code == 421, host
