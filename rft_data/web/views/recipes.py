"""The recipe form: fields beside their YAML, checked, explained, saved, and run where that is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from rft_data.core.errors import ConflictError, RecipeError, TokenError
from rft_data.recipe.shipped import shipped_recipe, shipped_recipes
from rft_data.run.status import stored_recipe
from rft_data.web.page import Page, Route, Text, View, Words
from rft_data.web.recipe_form import Sent, by_field, of_text, sent, worked_on
from rft_data.web.starting import Start, begin, planned

Form = Annotated[Sent, Depends(sent)]
_FIRST = "quickstart"
_MOST_RUNS = 50


class RecipeViews(View):
    """Recipes, written with a form beside their text."""

    def __init__(self, page: Page) -> None:
        super().__init__(page)
        self._begun: dict[str, dict[str, Any]] = {}
        """The form of each shipped recipe that was asked for."""

    def routes(self) -> Iterator[Route]:
        yield Route("/recipe", self.form)
        yield Route("/recipe", self.change, "POST")
        yield Route("/recipe/run", self.run, "POST")

    def form(self, start: Text = _FIRST) -> HTMLResponse:
        """A shipped recipe, to start from."""
        name = shipped_recipe(start).name
        if name not in self._begun:
            found = worked_on(of_text(shipped_recipe(name).path.read_text()), self._models())
            if not found["parts"]:
                return self._shown(found)
            self._begun[name] = found
        return self._shown(self._begun[name], start=name)

    def change(self, form_token: Words, form: Form) -> Response:
        """Put the fields into the text, and check, explain or download it."""
        self._page.check_form(form_token)
        found = worked_on(form, self._models())
        if form.button == "download" and not found["typed"]:
            return _file(found["text"])
        return self._shown(found, said=form.button == "check", status=400 if found["mistakes"] else 200)

    def run(self, form_token: Words, form: Form) -> Response:
        """Start a run of the recipe: the first time it is asked whether to, with the command."""
        below = self._page.runs_below
        if below is None:
            raise TokenError(
                "this page starts nothing; start it with 'rft view RUNS --allow-run' to run recipes."
            )
        self._page.check_form(form_token)
        found = worked_on(form, self._models())
        if not found["name"]:
            return self._shown(found, status=400)
        try:
            start = planned(below, found["name"], found["places"])
        except (RecipeError, ConflictError) as err:
            found["mistakes"].append({"line": None, "column": None, "key": "name", "message": str(err)})
            return self._shown(found, status=400)
        digest = sha256("\n".join([start.command, found["text"]]).encode()).hexdigest()
        if form.confirmed != digest:
            return self._page.shown("run_recipe.html", start=start, text=found["text"], digest=digest)
        return self._began(start, found["text"])

    def _models(self) -> set[str]:
        """Folders of models that recipes of the first runs name: they may be looked at for an outlook."""
        folders = [one.run_dir for one in self._page.subjects if one.run_dir is not None][:_MOST_RUNS]
        recipes = [stored_recipe(folder) for folder in folders]
        paths = [one["model"].get("path") for one in recipes if isinstance(one.get("model"), dict)]
        return {str(Path(path)) for path in paths if isinstance(path, str) and Path(path).is_absolute()}

    def _began(self, start: Start, text: str) -> RedirectResponse:
        begin(start, text)
        self._page.subjects.add(start.folder)
        return RedirectResponse("/", 303)

    def _shown(
        self, found: Mapping[str, Any], *, start: str = "", said: bool = False, status: int = 200
    ) -> HTMLResponse:
        return self._page.shown(
            "recipe.html",
            status,
            found=found,
            wrong=by_field(found),
            start=start,
            said=said,
            shipped=shipped_recipes(),
            may_run=self._page.runs_below is not None,
        )


def _file(text: str) -> PlainTextResponse:
    """The text as a file, named by its `name`."""
    name = re.search(r"^name: ([A-Za-z0-9][A-Za-z0-9._-]{0,80})\s*(?:#.*)?$", text, re.MULTILINE)
    headers = {"content-disposition": f'attachment; filename="{name[1] if name else "recipe"}.yaml"'}
    return PlainTextResponse(text, media_type="application/yaml", headers=headers)
