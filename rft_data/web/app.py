"""The routes of the page. Each reads what it shows at each request; none changes a run."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Form, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, RecipeError, RftError, RowError, TokenError
from rft_data.core.rows import Feedback, now
from rft_data.core.words import FeedbackKey
from rft_data.exchange.feedback import finite, storable
from rft_data.reading.group_view import group_view
from rft_data.reading.lineage import find, lineage, trained_on
from rft_data.reading.patience import patiently
from rft_data.run.status import stored_run_id
from rft_data.web import runs
from rft_data.web.alarms import NUMBERS, alarms
from rft_data.web.choosing import next_pair, store_choice
from rft_data.web.comparing import compare
from rft_data.web.listing import COLUMNS, histogram, listing, parsed, with_verdicts
from rft_data.web.rollout import advantage, conversation, run_tokenizer, tokens, whole_row
from rft_data.web.subjects import Subjects
from rft_data.web.task_map import task_map
from rft_data.web.templates import STATIC, environment

logger = logging.getLogger(__name__)
Text = Annotated[str, Query(max_length=2_000)]
Words = Annotated[str, Form(max_length=10_000)]
RowNumber = Annotated[int | None, Query(ge=0, lt=2**62)]


class Page:
    """The page over some subjects: its routes, each a method that answers with HTML."""

    def __init__(self, subjects: Subjects, author: str | None, form_token: str) -> None:
        self._subjects, self._author, self._form_token = subjects, author, form_token
        self._templates = environment()

    def index(self) -> HTMLResponse:
        """All subjects."""
        return self._shown("index.html", lines=runs.lines(self._subjects))

    def comparison(self, run: Annotated[list[str], Query(max_length=20)]) -> HTMLResponse:
        """Two to four runs beside each other."""
        return self._shown("compare.html", found=compare(self._subjects, run))

    def subject(self, key: str, follow: bool = False) -> HTMLResponse:
        """A run, or a buffer alone. Args: follow: load it again every five seconds while it runs."""
        subject = self._subjects[key]
        line = runs.line(self._subjects, subject)
        if line.status is None:
            return self._shown("buffer.html", subject=subject, line=line, author=self._author)
        buffer, run_id = runs.opened(self._subjects, key), self._run_id(key)
        names = dict.fromkeys((*runs.FIRST, *NUMBERS))
        frame = None if buffer is None else runs.metrics(buffer, run_id, list(names))
        return self._shown(
            "run.html",
            subject=subject,
            status=line.status,
            has_buffer=buffer is not None,
            author=self._author,
            follow=follow,
            alarms=alarms(line.status, frame),
            charts=[] if frame is None else runs.first_charts(frame),
            names=runs.last_numbers(line.status),
            outcomes={} if buffer is None else runs.outcomes(buffer, run_id),
            run_id=run_id,
        )

    def metric(
        self,
        key: str,
        name: Text,
        smoothing: Annotated[float, Query(ge=0, lt=1)] = 0.0,
        log: bool = False,
    ) -> HTMLResponse:
        """One of a run's numbers, large; a point leads to the rollouts of its step."""
        frame = runs.one_number(self._subjects, key, name)
        picture = runs.series(frame, name, smoothing=smoothing, log=log)
        subject = self._subjects[key]
        return self._shown(
            "metric.html", subject=subject, name=name, chart=picture, smoothing=smoothing, log=log
        )

    def metric_csv(self, key: str, name: Text) -> Response:
        """The numbers behind a picture, as step and value."""
        frame = runs.one_number(self._subjects, key, name)
        text = frame[[name]].dropna().rename(columns={name: "value"}).to_csv()
        headers = {"content-disposition": 'attachment; filename="metric.csv"'}
        return PlainTextResponse(text, media_type="text/csv", headers=headers)

    def experiences(self, key: str, where: Text = "", below: RowNumber = None) -> HTMLResponse:
        """Experiences, newest first."""
        buffer, subject = self._subjects.buffer(key), self._subjects[key]
        try:
            filter_ = parsed(where)
        except RecipeError as err:
            return self._shown("experiences.html", 400, subject=subject, where=where, wrong=str(err))
        return self._shown(
            "experiences.html",
            subject=subject,
            where=where,
            wrong="",
            found=listing(buffer, filter_, below),
            bins=histogram(buffer, filter_, where) if below is None else [],
        )

    def tasks(self, key: str) -> HTMLResponse:
        """Which tasks were played when, and how often they were solved."""
        found = task_map(self._subjects.buffer(key), self._run_id(key))
        return self._shown("tasks.html", subject=self._subjects[key], map=found)

    def step(self, key: str, step: int) -> HTMLResponse:
        """The experiences that an optimizer step was trained on."""
        buffer, subject = self._subjects.buffer(key), self._subjects[key]
        rows = trained_on(buffer, self._run_id(key), step).select(COLUMNS).to_pylist()
        with_verdicts(buffer, rows)
        return self._shown("step.html", subject=subject, step=step, rows=rows)

    def group(self, key: str, group_id: str) -> HTMLResponse:
        """The rollouts of a group side by side."""
        found = group_view(self._subjects.buffer(key), group_id)
        asked = [] if found.task is None else found.task.messages
        return self._shown(
            "group.html", subject=self._subjects[key], group=found, prompt=conversation(asked, len(asked))
        )

    def row(self, key: str, seq: int) -> HTMLResponse:
        """One experience: its conversation, its tokens, where it came from and what became of it."""
        buffer, subject = self._subjects.buffer(key), self._subjects[key]
        line = lineage(buffer, seq)
        row = whole_row(buffer, seq)
        return self._shown(
            "row.html",
            subject=subject,
            row=row,
            line=line,
            messages=conversation(json.loads(row["messages"] or "[]"), row["prompt_messages"]),
            tokens=tokens(row, advantage(line.judgements), run_tokenizer(subject.run_dir)),
            author=self._author,
            form_token=self._form_token,
        )

    def choose(self, key: str) -> HTMLResponse:
        """Two rollouts of a group, of which the author has not said which is better."""
        pair = next_pair(self._subjects.buffer(key), self._speaker())
        subject = self._subjects[key]
        return self._shown("choose.html", subject=subject, pair=pair, form_token=self._form_token)

    def chosen(
        self,
        key: str,
        left: Words,
        right: Words,
        answer: Annotated[Literal["a", "b", "s"], Form()],
        form_token: Words,
    ) -> RedirectResponse:
        """Store which of two rollouts is better: `a` the left one, `b` the right one, `s` neither."""
        author = self._speaker()
        self._check_form(form_token)
        with Buffer(self._subjects.buffer(key).location) as owned:
            store_choice(owned, author, left, right, answer)
        return RedirectResponse(f"/s/{key}/choose", 303)

    def say(
        self,
        key: str,
        seq: int,
        form_token: Words,
        value: Annotated[str, Form(max_length=40)] = "",
        text: Words = "",
    ) -> RedirectResponse:
        """Store a score, a comment or both about one experience, as feedback of this page's author."""
        author = self._speaker()
        self._check_form(form_token)
        experience = find(self._subjects.buffer(key), seq)["experience_id"]
        said = Feedback(experience, author, FeedbackKey.SCORE, _score(value), text.strip() or None, now())
        if said.value is None and said.text is None:
            raise RowError("nothing was said: give a score, a comment or both.")
        storable(text, "comment")
        with Buffer(self._subjects.buffer(key).location) as owned:
            owned.add_feedback([said])
        return RedirectResponse(f"/s/{key}/rows/{seq}", 303)

    def row_json(self, key: str, seq: int) -> JSONResponse:
        """One experience with every column."""
        buffer = self._subjects.buffer(key)
        found = {"row": whole_row(buffer, find(buffer, seq)["seq"])}
        return JSONResponse(json.loads(json.dumps(found, default=str)))

    def problem(self, request: Request, text: str, status: int) -> HTMLResponse:
        """An error in words."""
        number = secrets.token_hex(4)
        logger.warning("page: request %s of %s: %s", number, request.url.path, text)
        return self._shown("problem.html", status, text=text, number=number, status=status)

    def _speaker(self) -> str:
        if self._author is None:
            raise TokenError("this page only shows; start it with 'rft view --author NAME' to say something.")
        return self._author

    def _check_form(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self._form_token.encode()):
            raise TokenError("this form is not of this page; load it again.")

    def _run_id(self, key: str) -> str:
        """The run id under which a run's rows are stored."""
        return stored_run_id(runs.run_folder(self._subjects, key))

    def _shown(self, template: str, status: int = 200, /, **values: Any) -> HTMLResponse:
        return HTMLResponse(self._templates.get_template(template).render(values), status)


def make_app(subjects: Subjects, author: str | None, form_token: str) -> FastAPI:
    """The page as an ASGI application; who may see it, `guard.py` decides.

    Args: author: who speaks when something is said; None: the page only shows. form_token: what forms carry.
    """
    page = Page(subjects, author, form_token)
    app = FastAPI(title="rft-data", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/static", StaticFiles(directory=STATIC))
    routes: dict[str, Callable[..., Response]] = {
        "/": page.index,
        "/compare": page.comparison,
        "/s/{key}": page.subject,
        "/s/{key}/metric": page.metric,
        "/s/{key}/metric.csv": page.metric_csv,
        "/s/{key}/experiences": page.experiences,
        "/s/{key}/tasks": page.tasks,
        "/s/{key}/choose": page.choose,
        "/s/{key}/steps/{step}": page.step,
        "/s/{key}/groups/{group_id:path}": page.group,
        "/s/{key}/rows/{seq}": page.row,
        "/s/{key}/rows/{seq}/json": page.row_json,
    }
    for path, answer in routes.items():
        app.get(path, response_model=None)(_patient(answer))
    app.post("/s/{key}/choose", response_model=None)(page.chosen)
    app.post("/s/{key}/rows/{seq}/say", response_model=None)(page.say)
    _handle_errors(app, page)
    return app


def _patient(answer: Callable[..., Response]) -> Callable[..., Response]:
    """The answer, tried again where the owner of the buffer rewrote a file meanwhile."""

    @wraps(answer)
    def patient(*args: Any, **given: Any) -> Response:
        return patiently(partial(answer, *args, **given))

    return patient


def _handle_errors(app: FastAPI, page: Page) -> None:
    Handler = Callable[[Request, Any], Awaitable[Response]]

    def answering(status: Callable[[Any], int], text: Callable[[Any], str]) -> Handler:
        async def answer(request: Request, err: Any) -> Response:
            return page.problem(request, text(err), status(err))

        return answer

    app.add_exception_handler(RftError, answering(_status, str))
    app.add_exception_handler(HTTPException, answering(lambda err: err.status_code, lambda err: err.detail))
    app.add_exception_handler(
        Exception, answering(lambda err: 500, lambda err: f"{type(err).__name__}: {err}")
    )
    app.add_exception_handler(RequestValidationError, answering(lambda err: 422, _mistakes))


def _status(err: RftError) -> int:
    if isinstance(err, TokenError):
        return 403
    return 409 if isinstance(err, BusyError) else 400 if isinstance(err, RowError) else 404


def _score(text: str) -> float | None:
    """Raises: RowError when it is no finite number."""
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError as err:
        raise RowError(f"the score '{text}' is no number; give for example 1 or 0.5.") from err
    return finite(value, "the score")


def _mistakes(err: RequestValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in err.errors())
