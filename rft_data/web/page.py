"""The page that every view gets: the subjects, the person who asks, and the templates."""

from __future__ import annotations

import hmac
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from rft_data.core.errors import TokenError
from rft_data.core.words import HubRole
from rft_data.run.status import stored_run_id
from rft_data.web import runs
from rft_data.web.people import Person, speaker
from rft_data.web.subjects import Subjects
from rft_data.web.templates import environment
from rft_data.web.writing import Result, Writer, write

logger = logging.getLogger(__name__)
Text = Annotated[str, Query(max_length=2_000)]
"""A short text in a link."""
Words = Annotated[str, Form(max_length=10_000)]
"""A text in a form."""
Smoothing = Annotated[float, Query(ge=0, lt=1)]
"""Weight of the past in a moving average."""
FirstStep = Annotated[int | None, Query(ge=0, lt=2**62)]
"""The first step that a chart shows; None: the first there is."""
LastStep = Annotated[int | None, Query(ge=0, lt=2**62)]


@dataclass(frozen=True, slots=True)
class Route:
    """An address of the page, and what answers there."""

    path: str
    answer: Callable[..., Response]
    method: str = "GET"


class Page:
    """The page over some subjects."""

    def __init__(
        self,
        subjects: Subjects,
        author: str | None,
        form_token: str,
        runs_below: Path | None = None,
        *,
        renders: bool = False,
    ) -> None:
        self.subjects = subjects
        self._author = None if author is None else Person(author)
        self._form_secret = form_token
        self.runs_below = runs_below
        """The folder in which runs are started; None: none are."""
        self.renders = renders
        """Whether functions that recipes name may be run to show rows."""
        self._templates = environment()

    def shown(self, template: str, status: int = 200, /, **values: object) -> HTMLResponse:
        """A template with its values; every template also has the author and the token of forms."""
        person = self.person
        known = {
            "author": person and person.name,
            "curates": person is not None and person.curates,
            "form_token": self.form_token,
        }
        return HTMLResponse(self._templates.get_template(template).render(known | values), status)

    def problem(self, request: Request, text: str, status: int) -> HTMLResponse:
        """An error in words."""
        number = secrets.token_hex(4)
        logger.warning("page: request %s of %s: %s", number, request.url.path, text)
        return self.shown("problem.html", status, text=text, number=number, status=status)

    @property
    def person(self) -> Person | None:
        """Person whose link the request came by, or the page's only author; None: the page only shows."""
        return speaker() or self._author

    @property
    def form_token(self) -> str:
        """The token in the forms of the person who asks, against forged requests."""
        person = speaker()
        return self._form_secret if person is None else person.form_token(self._form_secret)

    def speaker(self) -> str:
        """The author. Raises: TokenError when this page only shows."""
        if self.person is None:
            raise TokenError("this page only shows; start it with 'rft view --author NAME' to say something.")
        return self.person.name

    def curator(self) -> str:
        """The author, who may decide what is trained on. Raises: TokenError for others."""
        author = self.speaker()
        if self.person is None or not self.person.curates:
            raise TokenError(
                f"'{author}' rates rows here, and does not decide what is trained on; that needs a link of "
                "'rft view --author NAME'."
            )
        return author

    def write(self, key: str, act: Callable[[Writer], Result]) -> Result:
        """Write to a subject's buffer as the present person may. Raises: as `writing.write`."""
        curates = self.person is not None and self.person.curates
        role = HubRole.CURATOR if curates else HubRole.FEEDBACK
        return write(self.subjects.buffer(key), self.subjects[key].run_dir, act, role)

    def check_form(self, token: str) -> None:
        """Raises: TokenError when a form was not made by this page."""
        if not hmac.compare_digest(token.encode(), self.form_token.encode()):
            raise TokenError("this form is not of this page; load it again.")

    def run_id(self, key: str) -> str:
        """The run id under which a run's rows are stored."""
        return stored_run_id(runs.run_folder(self.subjects, key))

    def own_run(self, key: str) -> str:
        """The run id of a run's rows; empty for a buffer alone."""
        return "" if self.subjects[key].run_dir is None else self.run_id(key)


class View(ABC):
    """Some addresses that belong together."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @abstractmethod
    def routes(self) -> Iterator[Route]:
        """Its addresses."""
