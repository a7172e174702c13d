"""Every route with anything in its parameters: schemathesis reads them from the application itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.schemas import APIOperation

from rft_data.buffer import Buffer
from rft_data.web.app import make_app
from rft_data.web.guard import HEADERS, Guard, cookie_name
from rft_data.web.subjects import Subjects
from tests.rft_data.web.conftest import FORM_TOKEN

pytestmark = pytest.mark.slow
HOST, TOKEN = "127.0.0.1", "of-the-link"
KNOWN: dict[str, list[Any]] = {
    "key": ["run", "library"],
    "form_token": [FORM_TOKEN],
    "seq": [0, 1, 2**61],
    "step": [0, 1, 99],
    "group_id": ["small/0-00000009", "../../0"],
    "name": ["trainer/reward", "trainer/rewrd"],
    "run": [["run", "preferred"], ["run", "library"], ["run"] * 20],
}
"""Values without which most requests end at the first check; half of the requests have others."""
EXAMPLES, WRITTEN = 12, 4
"""Requests of a route that shows, and of one that does something."""


def operations() -> dict[str, APIOperation]:
    """Method and path to what schemathesis makes requests from."""
    tree = make_app(Subjects([]), "me", FORM_TOKEN).openapi()
    for form in tree["components"]["schemas"].values():
        properties = form.get("properties", {})
        properties.update({name: {"enum": KNOWN[name]} for name in KNOWN.keys() & properties.keys()})
    for operation in [one for path in tree["paths"].values() for one in path.values()]:
        for parameter in operation.get("parameters", []):
            if parameter["name"] in KNOWN:
                parameter["schema"] = {"enum": KNOWN[parameter["name"]]}
    found = [one.ok() for one in schemathesis.openapi.from_dict(tree).get_all_operations()]
    return {operation.label: operation for operation in found}


OPERATIONS = operations()
WRITES = [label for label in OPERATIONS if label.startswith("POST ")]


def few(label: str) -> settings:
    """So many examples, however long they take."""
    most = WRITTEN if label in WRITES else EXAMPLES
    return settings(
        max_examples=most, deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
    )


@pytest.fixture(scope="module")
def app(runs: Path) -> Iterator[Guard]:
    with Subjects([str(runs / name) for name in ("run", "preferred", "library")]) as subjects:
        yield Guard(make_app(subjects, "me", FORM_TOKEN), token=TOKEN, hosts=frozenset((HOST,)))


def asked(app: Guard, case: Case, **headers: str) -> Response:
    """The answer; an error that nothing handles is raised here."""
    return case.call(
        app=app, base_url=f"http://{HOST}", headers={"host": HOST, **headers}, allow_redirects=False
    )


@pytest.mark.parametrize("label", OPERATIONS)
def test_every_request_is_answered_in_words_and_none_without_the_token(app: Guard, label: str) -> None:
    operation = OPERATIONS[label]
    modes = [GenerationMode.POSITIVE]
    if operation.path_parameters or operation.query or operation.body:
        modes.append(GenerationMode.NEGATIVE)

    @few(label)
    @given(case=st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes]))
    def check(case: Case) -> None:
        stranger = asked(app, case)
        assert stranger.status_code == 401
        assert stranger.text.startswith("Open the link")
        known = asked(app, case, cookie=f"{cookie_name(TOKEN)}={TOKEN}")
        assert known.status_code < 500, known.text
        for answer in (stranger, known):
            sent: dict[str, Any] = {name: values[0] for name, values in answer.headers.items()}
            assert HEADERS.items() <= sent.items()
        if known.status_code >= 400 and known.status_code != 413:  # the guard says that a form is too long
            assert "This cannot be shown" in known.text or 'role="alert"' in known.text

    check()


@pytest.mark.parametrize("label", WRITES)
def test_nothing_is_written_for_a_form_of_another_page(app: Guard, runs: Path, label: str) -> None:
    def counts() -> list[dict[str, int]]:
        found = []
        for place in (runs / "library", runs / "run" / "buffer"):
            with Buffer(place, read_only=True) as buffer:
                found.append(dict(buffer.counts()))
        return found

    before = counts()

    @few(label)
    @given(case=OPERATIONS[label].as_strategy(), forged=st.sampled_from(["", "x", FORM_TOKEN[:-1], None]))
    def check(case: Case, forged: str | None) -> None:
        assert isinstance(case.body, dict)
        case.body.pop("form_token")
        if forged is not None:
            case.body["form_token"] = forged
        answer = asked(app, case, cookie=f"{cookie_name(TOKEN)}={TOKEN}")
        assert answer.status_code in (403, 404, 422), answer.text

    check()
    assert counts() == before
