"""The page as an application: its views, and what becomes of errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from rft_data.core.errors import BusyError, ConflictError, RftError, RowError, TokenError
from rft_data.reading.patience import patiently
from rft_data.web.body_limit import Bounded
from rft_data.web.page import Page, View
from rft_data.web.subjects import Subjects
from rft_data.web.templates import STATIC
from rft_data.web.views.experiences import ExperienceViews
from rft_data.web.views.feedback import FeedbackViews
from rft_data.web.views.flow import FlowViews
from rft_data.web.views.lineage import LineageViews
from rft_data.web.views.payloads import PayloadViews
from rft_data.web.views.pictures import PictureViews
from rft_data.web.views.recipes import RecipeViews
from rft_data.web.views.runs import RunViews
from rft_data.web.views.search import SearchViews
from rft_data.web.views.tasks import TaskViews
from rft_data.web.views.trials import TrialViews
from rft_data.web.views.words import WordViews

VIEWS: tuple[type[View], ...] = (
    RunViews,
    FlowViews,
    PictureViews,
    SearchViews,
    ExperienceViews,
    PayloadViews,
    LineageViews,
    FeedbackViews,
    TrialViews,
    WordViews,
    RecipeViews,
    TaskViews,
)


def make_app(
    subjects: Subjects,
    author: str | None,
    form_token: str,
    runs_below: Path | None = None,
    *,
    renders: bool = False,
) -> FastAPI:
    """The page as an ASGI application; who may see it, `guard.py` decides.

    Args:
        author: who speaks when something is said; None: the page only shows. form_token: what forms carry.
        runs_below: the folder in which the page starts runs; None: it starts none.
        renders: whether functions that recipes name may be run to show rows.
    """
    page = Page(subjects, author, form_token, runs_below, renders=renders)
    app = FastAPI(title="rft-data", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Bounded)
    app.mount("/static", StaticFiles(directory=STATIC))
    for view in VIEWS:
        for route in view(page).routes():
            answer = _patient(route.answer) if route.method == "GET" else route.answer
            app.add_api_route(route.path, answer, methods=[route.method], response_model=None)
    _handle_errors(app, page)
    return app


def _patient(answer: Callable[..., Response]) -> Callable[..., Response]:
    """The answer, tried again where the owner of the buffer rewrote a file meanwhile."""

    @wraps(answer)
    def patient(*args: object, **given: object) -> Response:
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
    return 409 if isinstance(err, BusyError | ConflictError) else 400 if isinstance(err, RowError) else 404


def _mistakes(err: RequestValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in err.errors())
