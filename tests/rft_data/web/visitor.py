"""One `rft view` and one Chromium for the tests that need a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response

ARCHIVE = Path(__file__).parents[2] / "data" / "written_by_0_5_0.tar.xz"
"""Two runs and a buffer that 0.5.0 left behind."""
NAMES = ("chromium", "google-chrome")
FRUGAL = ("--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
"""Options of the browser: pictures are drawn without an emulated GPU, and no other host has an address."""
PATIENCE_MS = 120_000
"""So long a page may take to come or to change, beside other tests."""


@dataclass(frozen=True, slots=True)
class Served:
    """A running `rft view --author me --rater bob` over two runs and a buffer."""

    process: int
    link: str
    """Mine."""
    other_link: str
    """Bob's, who rates."""
    folder: Path
    """Of the runs and the buffer."""


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("browser")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    shown = [str(folder / name) for name in ("run", "preferred", "library")]
    with viewed([*shown, "--author", "me", "--rater", "bob"], lines=2) as (process, links):
        mine, other = (links[place].removeprefix(name) for place, name in enumerate(("me: ", "bob: ")))
        yield Served(process, mine, other, folder)


@contextmanager
def viewed(arguments: list[str], lines: int = 1) -> Iterator[tuple[int, list[str]]]:
    """`rft view` for a `with` block: its process id, and the first lines that it prints."""
    command = [sys.executable, "-m", "rft_data.cli.app", "view", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.pid, [server.stdout.readline().strip() for _ in range(lines)]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not of the session: the event loop of Playwright must not outlive the tests that know of it."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("no Chromium; to run them: apt-get install chromium")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FRUGAL)
        yield browser
        browser.close()


@dataclass
class Visitor:
    """A person with a browser who has opened the link, and what went wrong meanwhile."""

    page: Page
    home: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str) -> Response:
        """Go to an address of the page."""
        answer = self.page.goto(urljoin(self.home, path))
        assert answer is not None
        return answer

    @property
    def place(self) -> str:
        """Path and query of what is open."""
        found = urlsplit(self.page.url)
        return found.path + (f"?{found.query}" if found.query else "")

    def press(self, role: str, name: str | re.Pattern[str], by: str, number: int = 0) -> None:
        """Activate a link or a button. Args: by: `mouse` or `keyboard`; number: which of several."""
        found = self.page.get_by_role(role, name=name, exact=isinstance(name, str)).nth(number)  # type: ignore[arg-type]
        if role == "checkbox":
            self._activate(found, by, "Space")
        else:
            with self.page.expect_navigation():
                self._activate(found, by, "Enter")

    def press_access_key(self, key: str) -> None:
        """Press Alt and a letter, as a keyboard does: Playwright leaves out the letter beside Alt."""
        session = self.page.context.new_cdp_session(self.page)
        pressed = {"key": key, "text": key, "unmodifiedText": key, "modifiers": 1}
        with self.page.expect_navigation():
            for kind in ("rawKeyDown", "char"):
                session.send("Input.dispatchKeyEvent", {"type": kind, **pressed})

    def _activate(self, found: Locator, by: str, key: str) -> None:
        if by == "mouse":
            found.click()
        else:
            found.focus()
            self.page.keyboard.press(key)


@pytest.fixture
def visitor(browser: Browser, served: Served) -> Iterator[Visitor]:
    """A fresh visitor, whose browser said nothing wrong and asked no other host."""
    with visiting(browser, served.link) as person:
        yield person


@contextmanager
def visiting(browser: Browser, link: str) -> Iterator[Visitor]:
    """A visitor who opened a link, for a `with` block: nothing may be wrong at its end."""
    with browser.new_context(viewport={"width": 1280, "height": 800}) as context:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        person = Visitor(page, link)
        home = urlsplit(link).netloc

        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                person.wrong.append(f"{person.place}: console: {message.text}")

        def asked(request: Request) -> None:
            if urlsplit(request.url).netloc != home:
                person.wrong.append(f"{person.place}: asked {request.url}")

        page.on("console", heard)
        page.on("pageerror", lambda err: person.wrong.append(f"{person.place}: {err}"))
        context.on("request", asked)
        page.goto(link)
        yield person
        assert person.wrong == []
