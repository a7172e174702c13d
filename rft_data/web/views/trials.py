"""Views that try operators on stored rollouts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Annotated

from fastapi import Form, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from ruamel.yaml import YAML

from rft_data.core.errors import BusyError, RecipeError, RftError, StalledError
from rft_data.run.status import stored_recipe
from rft_data.run.trial.operator_text import KEY
from rft_data.web import runs
from rft_data.web.page import Page, Route, Text, View, Words
from rft_data.web.plot import Kind, download
from rft_data.web.trials import Trial, Trials, Wanted, as_recipe

_START = "- reward_variance_filter: {}\n- grpo_advantage_mapper: {}\n"
_FEW, _MOST = 64, 2_000


class TrialViews(View):
    """Views of trials: the rows that operators would keep, drop and change."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self._trials = Trials()

    def routes(self) -> Iterator[Route]:
        yield Route("/s/{key}/try", self.form)
        yield Route("/s/{key}/try", self.run, "POST")
        yield Route("/s/{key}/try/{number}", self.trial)
        yield Route("/s/{key}/try/{number}/readmit", self.readmit, "POST")
        yield Route("/s/{key}/try/{number}/recipe.yaml", self.recipe)
        yield Route("/s/{key}/try/{number}/{name}.{kind}", self.spread)

    def form(self, key: str, where: Text = "") -> HTMLResponse:
        """The run's own operators, to be changed and tried."""
        return self._shown(key, Wanted(self._own_operators(key), where, _FEW))

    def run(
        self,
        request: Request,
        key: str,
        form_token: Words,
        text: Words = "",
        where: Annotated[str, Form(max_length=2_000)] = "",
        groups: Annotated[int, Form(ge=1, le=_MOST)] = _FEW,
    ) -> Response:
        """Try a list of operators."""
        self._page.check_form(form_token)
        wanted = Wanted(text.replace("\r\n", "\n"), where, groups)
        try:
            trial = self._trials.run(self._page.subjects, key, wanted)
        except (RecipeError, BusyError, StalledError) as err:
            return self._shown(key, wanted, wrong=err, status=400 if isinstance(err, RecipeError) else 503)
        return RedirectResponse(f"/s/{key}/try/{trial.number}", 303)

    def trial(self, key: str, number: str) -> HTMLResponse:
        """The result of a trial, and its list, to be changed and tried again."""
        found = self._trials.find(key, number)
        return self._shown(key, found.wanted, trial=found)

    def readmit(self, key: str, number: str, form_token: Words) -> Response:
        """Have what the trial would keep of the run's rejected groups trained on, under another run id."""
        self._page.curator()
        self._page.check_form(form_token)
        try:
            self._trials.readmit(self._page.subjects, key, number)
        except (RecipeError, BusyError, StalledError) as err:
            found = self._trials.find(key, number)
            status = 400 if isinstance(err, RecipeError) else 503
            return self._shown(key, found.wanted, trial=found, wrong=err, status=status)
        return RedirectResponse(f"/s/{key}/try/{number}", 303)

    def spread(self, key: str, number: str, name: str, kind: Kind) -> Response:
        """Values before and after, as a file."""
        return download(self._trials.find(key, number).spread(name), kind)

    def recipe(self, key: str, number: str) -> Response:
        """A recipe that extends the run's with the operators that were tried."""
        found = self._trials.find(key, number)
        folder = runs.run_folder(self._page.subjects, key)
        headers = {"content-disposition": f'attachment; filename="{key}-tried.yaml"'}
        text = as_recipe(found, folder, stored_recipe(folder))
        return PlainTextResponse(text, media_type="application/yaml", headers=headers)

    def _shown(
        self,
        key: str,
        wanted: Wanted,
        *,
        trial: Trial | None = None,
        wrong: RftError | None = None,
        status: int = 200,
    ) -> HTMLResponse:
        return self._page.shown(
            "trial.html",
            status,
            subject=self._page.subjects[key],
            wanted=wanted,
            trial=trial,
            wrong=wrong,
            mistakes=getattr(wrong, "mistakes", ()),
            most=_MOST,
        )

    def _own_operators(self, key: str) -> str:
        """The operators of the run's recipe, as YAML; for a buffer alone, two to begin with."""
        folder = self._page.subjects[key].run_dir
        if folder is None:
            return _START
        operators = stored_recipe(folder).get(KEY)
        if not operators:
            return _START
        out = io.StringIO()
        writer = YAML(typ="safe", pure=True)
        writer.default_flow_style = None
        writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
        writer.dump(operators, out)
        return out.getvalue()
