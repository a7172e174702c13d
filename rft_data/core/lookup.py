"""Finds components by name: in a dict of built-ins, or by import path.

An import path is `package.module:Name`, or `folder/file.py:Name`, relative to the working directory or, where
it is not there, to a folder of `own_code_from`.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from rft_data.core.canonical import content_id
from rft_data.core.errors import MissingExtraError, RecipeError, RftError, UnknownComponentError

T = TypeVar("T")

OWN_CODE = "RFT_OWN_CODE"
"""Environment variable: folders whose modules can be named, which child processes inherit."""

MOVED: Mapping[str, str] = {"ops.rephrasing:rephrased": "ops.tasks.rephrasing:rephrased"}
"""Import paths in recipes of older versions, and the present paths."""
_OURS = frozenset({"rft_data", "ops", "explorers", "trainers", "recipes"})
_EXTRAS = {"gymnasium": "envs", "openenv": "openenv", "verifiers": "verifiers"}
"""Packages that a user's own file imports, and the extra that installs them."""
FILE_SUFFIX = ".py"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `" did you mean 'x'?"` when a known name is close, else an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" did you mean '{close[0]}'?" if close else ""


def lookup(name: str, table: Mapping[str, T], kind: str) -> T | Any:
    """Return the built-in called `name`, or what the import path `name` leads to.

    Raises: UnknownComponentError if there is no such built-in, module, file or attribute.
    """
    if name not in table and ":" in name:
        return load(name, kind)
    return built_in(name, table, kind, " Your own: 'package.module:Class' or 'file.py:Class'.")


def is_import_path(name: str) -> bool:
    """Whether a name has the form of an import path; nothing is imported."""
    module, _, attribute = name.rpartition(":")
    names = [attribute] if module.endswith(FILE_SUFFIX) else [*module.split("."), attribute]
    return all(part.isidentifier() for part in names)


def built_in(name: str, table: Mapping[str, T], kind: str, hint: str = "") -> T:
    """Return the built-in called `name`.

    Args: hint: end of the message about an unknown name.
    Raises: UnknownComponentError if there is none.
    """
    if name in table:
        return table[name]
    raise UnknownComponentError(
        f"{kind} '{name}' is not known;{suggest(name, table)} Built in: {', '.join(sorted(table))}.{hint}"
    )


def own_code_from(folder: Path) -> None:
    """Let import paths name modules of a folder, in this process and in those it starts.

    The folder is the last place that is looked in, so that a file there hides no installed package.
    """
    known = os.environ.get(OWN_CODE, "").split(os.pathsep)
    os.environ[OWN_CODE] = os.pathsep.join(dict.fromkeys([*filter(None, known), str(folder.resolve())]))
    _see_own_code()


def _see_own_code() -> None:
    sys.path.extend(one for one in own_folders() if one not in sys.path)


def own_folders(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The folders that `own_code_from` was given, here or in a process with another environment."""
    return [one for one in environment.get(OWN_CODE, "").split(os.pathsep) if one]


def load(path: str, kind: str) -> Any:
    """Import what an import path leads to; an error raised inside a module of ours passes through unchanged.

    Raises: UnknownComponentError if there is no such module, file or attribute; MissingExtraError if it
        imports the package of an extra that is not installed; RecipeError if a module of the user's fails.
    """
    _see_own_code()
    module_name, _, attribute = MOVED.get(path, path).rpartition(":")
    try:
        if module_name.endswith(FILE_SUFFIX):
            module = _from_file(module_name, f"{kind} '{path}'")
        else:
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as err:
        if err.name is not None and not module_name.startswith(err.name):
            if extra := _EXTRAS.get(err.name.partition(".")[0]):
                raise _missing(err, extra, f"{kind} '{path}'") from err
            if _is_ours(module_name):
                raise
            raise _failed(err, f"{kind} '{path}'") from err
        raise UnknownComponentError(
            f"{kind} '{path}': there is no module '{err.name}' in the recipe's folder, on PYTHONPATH or "
            "installed; put it there, or write 'folder/file.py:Class'."
        ) from err
    except RftError:
        raise
    except Exception as err:  # the module is the user's
        if _is_ours(module_name):
            raise
        raise _failed(err, f"{kind} '{path}'") from err
    if not hasattr(module, attribute):
        raise UnknownComponentError(
            f"{kind} '{path}': module '{module_name}' has no '{attribute}';{suggest(attribute, dir(module))}"
        )
    return getattr(module, attribute)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _OURS and not module.endswith(FILE_SUFFIX)


def _failed(err: Exception, why: str) -> RecipeError:
    """A module of the user's that cannot be imported, with the line of it that failed."""
    frames = traceback.extract_tb(err.__traceback__)
    outside = [one for one in frames if one.filename != __file__ and not one.filename.startswith("<frozen ")]
    place = f"{outside[0].filename}:{outside[0].lineno}: " if outside else ""
    if isinstance(err, SyntaxError):
        place = f"{err.filename}:{err.lineno}: "
    return RecipeError(f"{why} cannot be imported: {place}{type(err).__name__}: {err}")


def own_file(file: str) -> Path:
    """The path of a file of the user's, which is given from here or from the recipe's folder.

    Where there is none, the one from here.
    """
    here = Path(file).resolve()
    beside = (Path(folder, file).resolve() for folder in own_folders())
    return next((one for one in (here, *beside) if one.is_file()), here)


class _SourceAsItIs(SourceFileLoader):
    """Compiles a file each time it is loaded.

    Python takes the compiled file that it kept if its source had the same size in the same second: an edit of
    0.25 to 0.75 would go unseen.
    """

    def path_stats(self, path: str) -> NoReturn:
        """Raises: OSError, by which Python's loader neither looks for a compiled file nor writes one."""
        raise OSError(path)


def _from_file(file: str, why: str) -> ModuleType:
    """The module in a file, executed once per process. Raises: UnknownComponentError if there is no file."""
    path = own_file(file)
    name = f"rft_file_{content_id(str(path))}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise UnknownComponentError(
            f"{why}: there is no file {path}; give its path, from here or from the recipe's folder."
        )
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        _SourceAsItIs(name, str(path)).exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def need(module: str, extra: str, why: str) -> ModuleType:
    """Import an optional dependency; the error names the extra to install.

    Raises: MissingExtraError if the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        raise _missing(err, extra, why) from err


def _missing(err: ModuleNotFoundError, extra: str, why: str) -> MissingExtraError:
    return MissingExtraError(
        f"{why} needs the package '{err.name}', which is not installed; "
        f"install the extra: pip install 'rft-data[{extra}]' (or `make setup` in a checkout)."
    )
