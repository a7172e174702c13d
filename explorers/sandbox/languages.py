"""The languages of programs, and where their interpreters are."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rft_data.core.errors import SandboxError
from rft_data.core.lookup import built_in

SYSTEM = tuple(folder for folder in ("/usr", "/bin", "/lib", "/lib64", "/lib32") if os.path.isdir(folder))
"""Paths that every program may read: interpreters and their libraries."""
_FOLDERS = ("/usr/bin", "/usr/local/bin", "/bin")
NOBODY = 65534
"""The user that programs run as where this process is root's."""


@dataclass(frozen=True, slots=True)
class Language:
    """How a file of a language is run."""

    commands: tuple[str, ...]
    """Names of its interpreter, the preferred one first; they are looked for in the system's folders."""
    arguments: tuple[str, ...] = ()


LANGUAGES: Mapping[str, Language] = {
    "python": Language(("python3",), ("-I", "-S", "-B", "-X", "utf8")),
    "bash": Language(("bash",), ("--noprofile", "--norc")),
    "perl": Language(("perl",)),
    "ruby": Language(("ruby",)),
    "lua": Language(("lua", "lua5.4", "lua5.3")),
}
"""Not Node.js: it maps more address space than any sensible limit."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """An interpreter on this machine."""

    path: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    """Folders beyond the system's that it must be able to read."""


def find_interpreter(name: str) -> Interpreter:
    """The interpreter of a language that the user of programs can run; this process's own Python first.

    Raises: UnknownComponentError for a language that is not known; SandboxError if it has none here.
    """
    language = built_in(name, LANGUAGES, "language")
    if name == "python":
        own = os.path.realpath(sys.executable)
        prefix = os.path.realpath(sys.base_prefix)
        if _usable(own) and Path(own).is_relative_to(prefix):
            needs = () if any(map(Path(own).is_relative_to, SYSTEM)) else (prefix,)
            return Interpreter(own, language.arguments, needs)
    for command in language.commands:
        for folder in _FOLDERS:
            path = os.path.realpath(f"{folder}/{command}")
            if _usable(path) and any(map(Path(path).is_relative_to, SYSTEM)):
                return Interpreter(path, language.arguments, ())
    raise SandboxError(
        f"no interpreter of '{name}' is installed here ({' or '.join(language.commands)} in "
        f"{', '.join(_FOLDERS)}); install one, or leave out tasks in that language."
    )


def _usable(path: str) -> bool:
    """Whether the user of programs can execute a file: NOBODY, if this process is root's."""
    if not os.access(path, os.X_OK):
        return False
    if os.geteuid() != 0:
        return True
    file = Path(path)
    return all(one.stat().st_mode & stat.S_IXOTH for one in (file, *file.parents))
