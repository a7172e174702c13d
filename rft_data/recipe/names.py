"""Names that a recipe gives to components, checked without importing what they name.

What cannot be known without an import (a class of your own, an argument of an operator) is checked when a run
starts. A test compares the names here with the dictionaries of the components.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from explorers.engines.parallel import EXPERTS, SIZES
from ops import OPERATOR_MODULES
from ops.runtime.allowlist import NATIVE_OPERATORS, is_own
from rft_data.core.lookup import suggest

KL_ESTIMATORS = ("k1", "k2", "k3", "abs", "low_var")
LOSSES = (
    "ppo_clip", "dual_clip", "sequence_masking", "policy_gradient", "importance_sampling", "topr", "opmd",
    "sppo", "rec", "m2po", "sft", "raft", "mix", "chord", "decoupled_ppo", "loglinear_ppo",
)  # fmt: skip
BATCH_OPS = ("batch_std", "distill", "gae", "jsd", "kl_penalty", "returns_to_go", "whiten")
TRACKERS = (
    "tensorboard", "azure_ml", "clearml", "comet_ml", "dagshub", "dvclive", "kubeflow", "mlflow", "neptune",
    "swanlab", "trackio", "wandb",
)  # fmt: skip
WORKFLOWS = ("single_turn", "function", "tools", "environment", "verifiers", "program", "served")
SAMPLERS = ("fifo", "windowed", "ready_first", "fresh_first", "replay", "mix")
ENGINE_OPTIONS = ("dtype", "device", "max_num_seqs")
"""Options of the engine `transformers`."""

TRUNCATING = ("top_p", "top_k", "min_p")
"""Ways of sampling that cut the distribution off."""

_REGISTERED = re.compile(r"""(?:OP_NAME\s*=\s*|register_module\()["'](\w+)["']""")
"""The places at which a file of Data-Juicer names an operator."""


def known_name(kind: str, name: str, known: Collection[str], *, own: bool = True) -> str:
    """`name`, if it is one of `known`, or an import path where `own` allows it.

    Raises: ValueError.
    """
    if name in known or (own and ":" in name):
        return name
    hint = " Your own: 'package.module:Class' or 'file.py:Class'." if own else ""
    raise ValueError(
        f"{kind} '{name}' is not known;{suggest(name, known)} Built in: {', '.join(sorted(known))}.{hint}"
    )


def known_operator(operator: dict[str, dict[str, object] | None]) -> dict[str, dict[str, object] | None]:
    """An entry of an operator list, if it names one operator that exists.

    Raises: ValueError.
    """
    if len(operator) != 1:
        raise ValueError(f"found {sorted(operator)}; give one operator with its arguments")
    [name] = operator
    if ":" in name or is_safe(name):
        return operator
    found = data_juicer_operators()
    if found is not None and name not in found:
        known = {*OPERATOR_MODULES, *found}
        raise ValueError(f"operator '{name}' is not known;{suggest(name, known)} See docs/operators.md.")
    return operator


def is_safe(operator: str) -> bool:
    """Whether an operator may run without `allow_unsafe_ops`."""
    return operator in OPERATOR_MODULES or operator in NATIVE_OPERATORS or is_own(operator)


def known_batch_op(operator: dict[str, dict[str, object] | None]) -> dict[str, dict[str, object] | None]:
    """An entry of `batch_ops`, if it names one that exists. Raises: ValueError."""
    if len(operator) != 1:
        raise ValueError(f"found {sorted(operator)}; give one operator with its arguments")
    for name in operator:
        known_name("batch operator", name, BATCH_OPS)
    return operator


def known_option(engine: str, name: str) -> None:
    """Raises: ValueError for an option that a built-in engine does not have."""
    known = ENGINE_OPTIONS if engine == "transformers" else vllm_options() if engine == "vllm" else None
    if engine == "transformers" and name in (*SIZES, EXPERTS):
        raise ValueError(
            f"the engine 'transformers' has no '{name}': it is one process on one device; 'vllm' spreads "
            "over several"
        )
    if known is not None and name not in known:
        raise ValueError(f"the engine '{engine}' has no option '{name}';{suggest(name, known)}")


def data_juicer_operators() -> Collection[str] | None:
    """Names of the operators of the installed Data-Juicer; None without it."""
    loaded = sys.modules.get("data_juicer.ops.base_op")
    registered = set() if loaded is None else set(loaded.OPERATORS.modules)
    files = _data_juicer_names()
    return None if files is None else files | registered


def vllm_options() -> Collection[str] | None:
    """Fields of the installed vLLM's EngineArgs; None without it, or where its file has no such class."""
    spec = find_spec("vllm")
    path = _folder(spec) / "engine" / "arg_utils.py" if spec is not None else None
    return None if path is None or not path.is_file() else _annotated_fields(path, "EngineArgs")


@cache
def _data_juicer_names() -> frozenset[str] | None:
    spec = find_spec("data_juicer")
    if spec is None:
        return None
    files = sorted((_folder(spec) / "ops").rglob("*.py"))
    return frozenset(name for file in files for name in (*_REGISTERED.findall(file.read_text()), file.stem))


@cache
def _annotated_fields(path: Path, name: str) -> frozenset[str] | None:
    """Names of the annotated fields of a class in a Python file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return frozenset(
                field.target.id
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            )
    return None


def _folder(spec: object) -> Path:
    return Path(str(getattr(spec, "origin", ""))).parent
