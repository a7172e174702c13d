"""Texts and ids that are equal where values are equal, whatever containers hold them."""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from rft_data.core.canonical import bytes_id, canonical_json, content_id, json_as_given


def test_only_the_canonical_form_sorts_keys() -> None:
    value = {"b": [1, {"d": None, "c": "é"}], "a": 0.5}
    assert json_as_given(value) == '{"b":[1,{"d":null,"c":"é"}],"a":0.5}'
    assert canonical_json(value) == '{"a":0.5,"b":[1,{"c":"é","d":null}]}'


@pytest.mark.parametrize("text", [json_as_given, canonical_json])
def test_mappings_and_sequences_of_any_type_are_written(text: Callable[[Any], str]) -> None:
    assert text(MappingProxyType({"a": range(2)})) == text({"a": [0, 1]}) == '{"a":[0,1]}'


@pytest.mark.parametrize("text", [json_as_given, canonical_json])
@pytest.mark.parametrize("value", [b"bytes", bytearray(b"bytes"), {1, 2}, object()])
def test_what_json_has_no_form_for_is_refused(text: Callable[[Any], str], value: object) -> None:
    with pytest.raises(TypeError, match=f"type {type(value).__name__} cannot be written"):
        text([value])


@pytest.mark.parametrize("text", [json_as_given, canonical_json])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(text: Callable[[Any], str], value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        text({"a": value})


def test_ids_are_those_of_stored_buffers() -> None:
    assert bytes_id(b"") == "cae66941d9efbd404e4d88758ea67670"
    assert content_id("run", 1, {"b": None, "a": (2,)}) == content_id("run", 1, {"a": [2], "b": None})
    assert content_id("run", 1) == bytes_id(b'["run",1]')
