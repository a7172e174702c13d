"""The only module that imports Data-Juicer, and undoes what the import changes in the process.

Its import removes loguru handlers and configures the root logger. It imports ray, which sets an exception
hook and an environment variable. Its lazy loader installs missing packages with pip.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NoReturn

from rft_data.core.errors import MissingExtraError
from rft_data.core.lookup import need

WHY = "running data operators"


@cache
def registry() -> Any:
    """Data-Juicer's OPERATORS, with ours registered; `.modules` maps a name to its class.

    From the first call on, Data-Juicer installs no package in this process and its log messages are
    off (`loguru.logger.enable("data_juicer")` turns them on again).
    Raises: MissingExtraError without the extra `ops`.
    """
    with _host_undisturbed():
        _forbid_installs()
        base_op = need("data_juicer.ops.base_op", "ops", WHY)
        # Constructing an operator would import this (and ray) later, where nothing undoes its effects.
        need("data_juicer.core.data", "ops", WHY)
        importlib.import_module("ops.register")
    return base_op.OPERATORS


@contextmanager
def host_kept_quiet() -> Iterator[None]:
    """No progress bars of `datasets` inside the block, and the same multiprocessing start method after it.

    Data-Juicer's first tqdm bar sets the start method of multiprocessing for the whole process.
    """
    datasets = need("datasets", "ops", WHY)
    shown = not datasets.are_progress_bars_disabled()
    method = multiprocessing.get_start_method(allow_none=True)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
        if method is None:
            multiprocessing.set_start_method(method, force=True)


@contextmanager
def _host_undisturbed() -> Iterator[None]:
    """Undo what importing Data-Juicer changes outside of itself."""
    logger = need("loguru", "ops", WHY).logger
    images: Any = need("PIL.ImageFile", "ops", WHY)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    stdout, stderr, excepthook = sys.stdout, sys.stderr, sys.excepthook
    ray_mode = os.environ.get("RAY_CLIENT_MODE")
    folder = tempfile.tempdir
    truncated = images.LOAD_TRUNCATED_IMAGES
    if "data_juicer" not in sys.modules:
        logger.disable("data_juicer")
    # remove() would end the host's handlers, and loguru has no way to add them again.
    logger.remove = logger.add = _ignore
    try:
        yield
    finally:
        del logger.remove, logger.add
        sys.stdout = stdout
        sys.stderr = stderr
        sys.excepthook = excepthook
        root.handlers[:] = handlers
        root.setLevel(level)
        tempfile.tempdir = folder
        images.LOAD_TRUNCATED_IMAGES = truncated
        if ray_mode is None:
            os.environ.pop("RAY_CLIENT_MODE", None)
        else:
            os.environ["RAY_CLIENT_MODE"] = ray_mode


def _ignore(*_: object, **__: object) -> int:
    return 0


def _forbid_installs() -> None:
    loader = need("data_juicer.utils.lazy_loader", "ops", WHY).LazyLoader
    loader._install_package = staticmethod(_refuse_install)


def _refuse_install(package: str, *_: object, **__: object) -> NoReturn:
    raise MissingExtraError(
        f"a data operator needs the package '{package}', which is not installed; nothing is installed "
        f"during a run: pip install '{package}' first, or take the operator out of the recipe."
    )
