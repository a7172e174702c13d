"""The recipe form as a browser sends it and as the page shows it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request

from rft_data.core.errors import RftError
from rft_data.web.child_work import ask

MOST_CHARACTERS = 64_000
DEADLINE_S = 30.0
_FIELD = "f."
"""Before the key of a recipe, in the name of its field."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A form that was sent."""

    text: str
    """The YAML as the person left it."""
    drawn: str
    """The YAML from which the fields were drawn."""
    fields: Mapping[str, str]
    button: str
    confirmed: str


async def sent(request: Request) -> Sent:
    """The form in a request. Raises: HTTPException 413 for a recipe that is too long."""
    form = await request.form()
    given = {name: value.replace("\r\n", "\n") for name, value in form.items() if isinstance(value, str)}
    found = Sent(
        text=given.get("text", ""),
        drawn=given.get("drawn", ""),
        fields={name.removeprefix(_FIELD): one for name, one in given.items() if name.startswith(_FIELD)},
        button=given.get("do", ""),
        confirmed=given.get("confirmed", ""),
    )
    if max(len(found.text), len(found.drawn)) > MOST_CHARACTERS:
        raise HTTPException(
            413, f"a recipe has at most {MOST_CHARACTERS} characters here; send a shorter one."
        )
    return found


def of_text(text: str) -> Sent:
    """A form whose fields are still to be drawn."""
    return Sent(text, text, {}, "", "")


def worked_on(form: Sent, models: Collection[str] = ()) -> dict[str, Any]:
    """Findings of `rft_data.recipe.form.submission` in a form; what was typed is never lost.

    Args: models: folders of models that may be looked at: no other path in the form reaches the file system.
    """
    request = {
        "models": sorted(models),
        "text": form.text,
        "drawn": form.drawn,
        "fields": form.fields,
        "explain": form.button == "explain",
    }
    try:
        return ask("rft_data.run.recipe_form_child", request, deadline_s=DEADLINE_S, what="the check")
    except RftError as err:
        mistake = {"line": None, "column": None, "key": "recipe", "message": str(err)}
        return {
            "text": form.text,
            "parts": [],
            "mistakes": [mistake],
            "typed": dict(form.fields),
            "name": "",
            "places": {},
            "explained": [],
            "outlook": [],
        }


def by_field(answer: Mapping[str, Any]) -> dict[str, list[str]]:
    """The mistakes of each field: of its key, or of the first field inside or around the key."""
    keys = [field["key"] for part in answer["parts"] for field in part["fields"]]
    found: dict[str, list[str]] = {}
    for mistake in answer["mistakes"]:
        key = mistake["key"]
        place = next((one for one in keys if one == key or one.startswith(f"{key}.")), None)
        place = place or next((one for one in keys if key.startswith(f"{one}.")), None)
        if place is not None:
            found.setdefault(place, []).append(mistake["message"])
    return found
