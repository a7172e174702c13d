"""Annotations of a role's methods, and what a role says about them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import from_json

from rft_data.core.errors import DiskFullError, RftError
from rft_data.placement.calls import Awaited, RoleSetup, encode_call, encode_failure, read_value
from rft_data.placement.host import Host, Typed
from rft_data.placement.hub.access import HubAccess
from rft_data.placement.hub.wire import decode_answer, encode_result
from tests.rft_data.placement.conftest import spec


class Opaque:
    """No type that JSON has values of."""


class Odd:
    def unknown(self, lease: NotImported) -> None:  # noqa: F821 - as under `if TYPE_CHECKING`
        """Its annotation cannot be evaluated."""

    def opaque(self, thing: Opaque) -> None:
        """Its annotation can, but no value of it can pass."""

    def bare(self, a, b=2):
        """No annotations: values pass as JSON has them."""
        return a, b


def test_an_annotation_that_cannot_be_evaluated_is_named() -> None:
    with pytest.raises(RftError, match=r"annotation of 'unknown' .*NotImported.*outside `if TYPE_CHECKING`"):
        Typed.of("odd", Odd().unknown)


def test_a_type_that_json_has_no_values_of_is_named() -> None:
    typed = Typed.of("odd", Odd().opaque)
    with pytest.raises(RftError, match=r"values of type .*Opaque.* cannot pass between processes"):
        typed.read("odd", {"thing": {}})


def test_without_annotations_values_pass_as_they_are() -> None:
    assert Typed.of("odd", Odd().bare).read("odd", {"a": [1, "x"]}) == {"a": [1, "x"]}


def test_keys_that_json_makes_texts_are_read_as_their_type() -> None:
    assert read_value(dict[int, float], {"3": 0.5}, "it") == {3: 0.5}


def test_a_call_is_settled_once() -> None:
    awaited = Awaited("toy", "add", int, 5.0)
    assert not awaited.future.cancel(), "nobody may cancel what the role still does"
    awaited.answered(encode_result(3))
    awaited.failed(RftError("late"))
    awaited.answered(encode_result(4))
    assert awaited.future.result() == 3


def test_an_error_keeps_a_text_that_is_not_utf8() -> None:
    with pytest.raises(DiskFullError, match=r"\\udc80"):
        decode_answer(encode_failure(DiskFullError("file \udc80")))


def test_a_host_answers_calls_and_closes_its_role(tmp_path: Path) -> None:
    host = Host(RoleSetup.of(spec(folder=str(tmp_path)), None))

    async def conversation() -> list[Any]:
        said = []
        for method, arguments in (
            ("add", {"a": 2}),
            ("meet", {}),
            ("zero", {}),
            ("not_plain", {}),
            ("close", {}),
        ):
            if method == "meet":
                await host.answer(encode_call("toy", "release", {}))
            said.append(from_json(await host.answer(encode_call("toy", method, arguments))))
        return said

    added, met, failed, not_plain, closed = asyncio.run(conversation())
    assert (added, met) == ({"result": 3}, {"result": "met"})
    assert failed["error"] == "RftError"
    assert "ZeroDivisionError" in failed["message"]
    assert "cannot be written as JSON" in not_plain["message"]
    assert closed == {"result": None}
    assert host.closed
    assert (tmp_path / "closed").exists()


def test_a_factory_that_breaks_is_an_error_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RftError, match=r"role 'toy' failed in '\(start\)': KeyError: 'model'"):
        Host(RoleSetup.of(spec(factory="breaks"), None))
    assert 'raise KeyError("model")' in capfd.readouterr().err, "the traceback is lost"


def test_a_setup_reaches_its_process_whole_and_shows_no_token() -> None:
    setup = RoleSetup.of(spec(), HubAccess("hub://127.0.0.1:1", "the-secret"))
    assert RoleSetup.decode(setup.encode()) == setup
    assert setup.hub is not None
    assert setup.hub.token not in repr(setup)
