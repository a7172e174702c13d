"""The JSON Schema of recipes, with which an editor completes and checks them.

It is a little wider than what `rft recipe validate` accepts: what a preset fills in may be left out, a
reference to another value may stand for a number, and there are no rules across sections. A file that
extends others may lack any key: only its `extends` is checked.
"""

from __future__ import annotations

import json
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from rft_data.recipe.field_docs import field_docs
from rft_data.recipe.layers import EXTENDS
from rft_data.recipe.modes import MODES
from rft_data.recipe.names import known_batch_op, known_operator
from rft_data.recipe.section import Section

TITLE = "rft-data recipe"
_FILLED_IN = {"experience_ops", "group_size"}
"""Required keys that the preset of an algorithm sets."""
_REFERENCE = {"type": "string", "pattern": r"^\$\{(env|ref):"}
_PARENTS: dict[str, object] = {
    "description": "Recipes that this file changes: names of shipped ones, or files, seen from its folder.",
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
}


def recipe_schema() -> dict[str, object]:
    """The schema of a recipe of any mode."""
    recipes: Any = reduce(or_, MODES.values())
    any_mode: TypeAdapter[Any] = TypeAdapter(Annotated[recipes, Field(discriminator="mode")])
    schema = any_mode.json_schema(schema_generator=_Documented)
    definitions = schema.pop("$defs")
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": TITLE,
        "$defs": definitions,
        "if": {"required": [EXTENDS]},
        "then": {"properties": {EXTENDS: _PARENTS}},
        "else": schema,
    }


@cache
def schema_text() -> str:
    """The schema as the file beside a recipe, which editors read."""
    return json.dumps(recipe_schema(), indent=1) + "\n"


class _Documented(GenerateJsonSchema):
    """Describes each key by the docstring under its field."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """A section."""
        found = super().model_schema(schema)
        if issubclass(schema["cls"], Section):
            for name, text in field_docs(schema["cls"]).items():
                found["properties"][name]["description"] = text
        if "required" in found:
            found["required"] = [name for name in found["required"] if name not in _FILLED_IN]
        return found

    def tagged_union_schema(self, schema: core_schema.TaggedUnionSchema) -> JsonSchemaValue:
        """Alternatives that a value chooses; one of them may let through what another names exactly."""
        found = super().tagged_union_schema(schema)
        return {"anyOf": found.pop("oneOf"), **found} if "oneOf" in found else found

    def function_after_schema(self, schema: core_schema.AfterValidatorFunctionSchema) -> JsonSchemaValue:
        """Of an entry of an operator list: its name alone stands for the operator without arguments."""
        found = super().function_after_schema(schema)
        if schema["function"]["function"] not in (known_operator, known_batch_op):
            return found
        return {"anyOf": [found, {"type": "string"}]}

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        """A whole number."""
        return {"anyOf": [super().int_schema(schema), _REFERENCE]}

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """A number."""
        return {"anyOf": [super().float_schema(schema), _REFERENCE]}

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        """True or false."""
        return {"anyOf": [super().bool_schema(schema), _REFERENCE]}
