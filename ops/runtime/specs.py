"""Operator lists as recipes write them, checked against the operators' signatures and built.

`[{reward_range_filter: {min_reward: 0}}, {grpo_advantage_mapper: null}]`, as in Data-Juicer's own
`process:` lists. All mistakes are reported at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from ops import OPERATOR_MODULES
from ops.base import ArrowOperator
from ops.runtime.allowlist import NATIVE_OPERATORS, is_own, unsafe_arguments
from ops.runtime.hygiene import registry
from rft_data.core.canonical import canonical_json
from rft_data.core.errors import MissingExtraError, RecipeError, UnknownComponentError
from rft_data.core.lookup import load, suggest

OperatorList = Sequence[Mapping[str, Mapping[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class Spec:
    """One operator of a list."""

    name: str
    """Its name in Data-Juicer's registry, or the import path of an operator class."""
    args: Mapping[str, Any]
    """The arguments in the recipe, JSON values."""

    def build(self, text_column: str) -> Any:
        """Construct the operator; Data-Juicer's own read `text_column` unless the recipe gives a `text_key`.

        Raises: RecipeError when the operator refuses its arguments; MissingExtraError.
        """
        operator = operator_class(self.name)
        args = dict(self.args)
        if not issubclass(operator, ArrowOperator):
            args = {"text_key": text_column, **args, "num_proc": None, "auto_op_parallelism": False}
        try:
            return operator(**args)
        except MissingExtraError:
            raise
        except ModuleNotFoundError as err:
            raise MissingExtraError(
                f"operator '{self.name}' needs the package '{err.name}', which is not installed: "
                f"pip install '{err.name}'."
            ) from err
        except (ValueError, TypeError, AssertionError, OSError) as err:
            raise RecipeError(f"operator '{self.name}' does not accept {dict(self.args)}: {err}") from err


def parse(operators: OperatorList, name: str, *, allow_unsafe: bool) -> tuple[Spec, ...]:
    """Check a recipe's operator list; `name` is the recipe key, for messages.

    Raises: UnknownComponentError when only names are unknown, else RecipeError; all mistakes at once.
    """
    specs = []
    unknown: list[str] = []
    invalid: list[str] = []
    for place, entry in enumerate(operators):
        where = f"{name}[{place}]"
        if not isinstance(entry, Mapping) or len(entry) != 1:
            invalid.append(f"{where}: got {entry!r}; wanted one operator name with its arguments")
            continue
        ((operator, given),) = entry.items()
        try:
            kind = _allowed_class(str(operator), allow_unsafe=allow_unsafe)
        except UnknownComponentError as err:
            unknown.append(f"{where}: {err}")
            continue
        if given is not None and not isinstance(given, Mapping):
            invalid.append(f"{where}.{operator}: got {given!r}; wanted a mapping of arguments")
            continue
        spec = Spec(operator, dict(given or {}))
        if kind is None:
            invalid.append(f"{where}.{operator}: {_UNSAFE}")
            continue
        if not allow_unsafe:
            invalid.extend(
                f"{where}.{operator}.{key}: with this value the operator {does}; {_WANTED}"
                for key, does in unsafe_arguments(operator, spec.args)
            )
        mistakes = _argument_mistakes(kind, spec)
        invalid.extend(f"{where}.{operator}{mistake}" for mistake in mistakes)
        specs.append(spec)
    if invalid or unknown:
        error = RecipeError if invalid else UnknownComponentError
        raise error("\n  ".join([f"operator list '{name}' is not valid:", *unknown, *invalid]))
    return tuple(specs)


def operator_class(name: str) -> type:
    """The operator of Data-Juicer's registry called `name`, or the class at an import path.

    Raises: UnknownComponentError, also for an object that is no registered operator.
    """
    known: Mapping[str, type] = registry().modules  # first: it keeps Data-Juicer's import from doing harm
    if ":" not in name:
        if name not in known:
            raise UnknownComponentError(f"operator '{name}' is not known;{suggest(name, known)}")
        return known[name]
    kind = load(name, "operator")
    if kind not in known.values():
        raise UnknownComponentError(
            f"'{name}' is no operator of Data-Juicer's registry; decorate the class with "
            "@OPERATORS.register_module('NAME') (docs/operators.md, 'Writing one')."
        )
    return cast(type, kind)


def _allowed_class(name: str, *, allow_unsafe: bool) -> type | None:
    """The operator's class; None, and nothing imported, for one that needs `allow_unsafe_ops`."""
    if allow_unsafe or is_own(name) or name in OPERATOR_MODULES or name in NATIVE_OPERATORS:
        return operator_class(name)
    if ":" not in name:
        operator_class(name)  # one that does not exist is named as that
    return None


_UNSAFE = (
    "is not on the list of safe operators, which do not execute their arguments and use no files and no "
    "network; set allow_unsafe_ops: true if you trust this recipe and the operator"
)

_WANTED = "set allow_unsafe_ops: true if you want it to"


def _argument_mistakes(operator: type, spec: Spec) -> Iterator[str]:
    accepted, required = _arguments(operator)
    for missing in sorted(required - spec.args.keys()):
        yield f": argument '{missing}' is missing"
    for key, value in spec.args.items():
        if key not in accepted:
            near = suggest(str(key), accepted) or f" those that it takes: rft ops show {spec.name}"
            yield f".{key}: unknown argument;{near}"
        elif key == "skip_op_error" and value:
            yield ".skip_op_error: must not be true: a failing row would be lost without a reason"
        elif mistake := _type_mistake(value, accepted[key]):
            yield f".{key}: {mistake}, got {value!r}"


def _arguments(operator: type) -> tuple[dict[str, Any], set[str]]:
    """Argument name to type, over the operator and its Data-Juicer bases; and those without a default."""
    accepted: dict[str, Any] = {}
    required: set[str] = set()
    for base in reversed(operator.__mro__[:-1]):
        accepted.update({name: kind or Any for name, (kind, _) in vars(base).get("_BASE_PARAMS", {}).items()})
        if "__init__" not in vars(base):
            continue
        signature = inspect.signature(vars(base)["__init__"])
        hints = get_type_hints(vars(base)["__init__"], include_extras=True)
        named = [
            parameter
            for parameter in list(signature.parameters.values())[1:]
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        for parameter in named:
            kind = hints.get(parameter.name, Any)
            # Data-Juicer often annotates `str = None`.
            accepted[parameter.name] = kind | None if parameter.default is None and kind is not Any else kind
        if base is operator:
            required = {parameter.name for parameter in named if parameter.default is parameter.empty}
    return accepted, required


def _type_mistake(value: Any, kind: Any) -> str | None:
    # Strict JSON rules: "1" is not a number; a list is accepted for a tuple.
    adapter: TypeAdapter[Any] = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    try:
        adapter.validate_json(canonical_json(value), strict=True)
    except ValidationError as err:
        return err.errors()[0]["msg"]
    except (TypeError, ValueError):
        return "must be a JSON value (text, finite number, true or false, null, list or mapping)"
    return None
