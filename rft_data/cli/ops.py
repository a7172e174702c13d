"""`rft ops`: what the operators are."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from rft_data.cli.completion import operator_names
from rft_data.cli.edge import Json, edge, show

if TYPE_CHECKING:
    from ops.catalogue import Operator

ops_app = typer.Typer(help="What the operators are: ours, and those of Data-Juicer.", no_args_is_help=True)


@ops_app.command("list")
def list_(as_json: Json = False) -> None:
    """Every operator that a recipe may name without `allow_unsafe_ops`, with what it does in a sentence."""
    with edge():
        from ops.catalogue import operators

        found = operators()
        width = max(len(one.name) for one in found)
        lines: list[str] = []
        for ours in (True, False):
            lines += [*[""] * bool(lines), "ours:" if ours else "Data-Juicer's:"]
            lines += [
                f"  {one.name:<{width}}  {one.unit:<5}  {one.about}" for one in found if one.ours == ours
            ]
        value = [{"name": one.name, "ours": one.ours, "unit": one.unit, "about": one.about} for one in found]
        show(value, "\n".join(lines), as_json=as_json)


@ops_app.command("show")
def show_(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of an operator, for example grpo_advantage_mapper.", autocompletion=operator_names
        ),
    ],
    as_json: Json = False,
) -> None:
    """An operator's signature, what it does with formula and source, its arguments, and an example."""
    with edge():
        from ops.catalogue import operator

        found = operator(name)
        value = {**asdict(found), "signature": found.signature, "example": found.example}
        show(value, _text(found), as_json=as_json)


def _text(found: Operator) -> str:
    parts = [f"{found.signature}\n\nunit: {found.unit}", found.doc]
    if found.arguments_doc:
        parts.append("arguments:\n" + textwrap.indent(found.arguments_doc, "  "))
    return "\n\n".join([*parts, f"in a recipe:\n{textwrap.indent(found.example, '  ')}", found.source])
