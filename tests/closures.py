"""Environments that hold the wheel and what its metadata asks for, and nothing else.

What is needed is taken from the environment of the tests, by links: seconds, and no network.
"""

from __future__ import annotations

import sysconfig
import venv
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name

NEVER = (".pyc", ".pth")


@cache
def installed() -> dict[str, Distribution]:
    """Every package of the tests' environment, by its canonical name."""
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return {canonicalize_name(one.name): one for one in distributions(path=list(dict.fromkeys(places)))}


def needed(requirements: Iterable[str]) -> set[str]:
    """The packages that these requirements bring, with what those ask for; KeyError for an absent one."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(one), "") for one in requirements]
    while waiting:
        one, extra = waiting.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(one.name)
        for wanted in ["", *sorted(one.extras)]:
            if (name, wanted) not in found:
                found.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in installed()[name].requires or ()]
    return {name for name, _ in found}


@cache
def _owners() -> dict[str, set[str]]:
    """The names beside each other in `site-packages`, and whose each is."""
    owners: dict[str, set[str]] = {}
    for name, package in installed().items():
        for file in package.files or ():
            owners.setdefault(file.parts[0], set()).add(name)
    return owners


def files(name: str) -> Iterator[Path]:
    """The files of a package, as seen from `site-packages`."""
    for file in installed()[name].files or ():
        if file.parts[0] != ".." and not file.name.endswith(NEVER):
            yield Path(*file.parts)


def closure(folder: Path, requirements: Iterable[str]) -> Path:
    """A virtual environment of these requirements in a folder; returns its `bin`."""
    venv.create(folder, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    there = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name in needed(requirements):
        for file in files(name):
            whole = len(_owners()[file.parts[0]]) == 1
            link = there / (file.parts[0] if whole else file)
            if not link.is_symlink():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(here / link.relative_to(there))
    return folder / "bin"


def repacked(name: str, folder: Path) -> None:
    """A wheel in the folder from the files of a package that is installed."""
    package = installed()[name]
    text = package.read_text("WHEEL") or ""
    here = {str(tag) for tag in sys_tags()}
    tags = [line.removeprefix("Tag: ") for line in text.splitlines() if line.startswith("Tag: ")]
    tag = next(tag for tag in tags if tag in here)
    stem = f"{package.name.replace('-', '_').replace('.', '_')}-{package.version}-{tag}"
    with zipfile.ZipFile(folder / f"{stem}.whl", "w") as wheel:
        for file in files(name):
            wheel.write(Path(sysconfig.get_path("purelib")) / file, str(file))
