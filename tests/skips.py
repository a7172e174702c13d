"""The end of a test run: a line for each reason to skip tests, with what it takes to run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

_APART = "`make test` installs it apart from the tested set (requirements/apart.txt)"
NEEDS = {
    "could not import 'trackio'": _APART,
    "could not import 'mlflow'": _APART,
    "could not import 'swanlab'": _APART,
    "could not import 'agentscope'": _APART,
    "could not import 'lmformatenforcer'": _APART,
    "could not import 'vllm'": "`make setup` installs it, on platforms that have a wheel of it",
    "could not import ": "`make setup` installs it",
    "no small file system": "be root on Linux, where `mount` may make a tmpfs",
    "no cluster: ": "set RFT_TEST_NODES=1, and run them alone",
    "no nodes: ": "be root on Linux, with iproute2 and util-linux, in a folder outside /tmp",
    "no node is lost ": "set RFT_TEST_NODES=1",
    "no tc ": "a kernel with that queueing discipline (for netem: CONFIG_NET_SCH_NETEM)",
    "no sandbox ": "docs/sandbox.md says what each kind takes",
    "needs strace": "install strace, and allow ptrace",
}
"""Beginning of a reason to what it takes; other reasons say it themselves."""

LEFT_OUT = {"heavy": "make test HEAVY=yes", "slow": "make test"}
"""Marks of tests that a command leaves out, and the command that runs them."""


def skip_lines(reports: Iterable[pytest.TestReport | pytest.CollectReport], marks: str) -> list[str]:
    """One line per reason, the commonest first, then one per mark that the option `-m` left out."""
    reasons: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for report in reports:
        reason = _reason(report)
        (files if isinstance(report, pytest.CollectReport) else reasons)[reason] += 1
    lines = [f"skipped: {_counted(n, 'test')}: {_with_needs(reason)}" for reason, n in reasons.most_common()]
    lines += [f"skipped: {_counted(n, 'whole file')}: {_with_needs(why)}" for why, n in files.most_common()]
    lines += [
        f"skipped: the tests marked '{mark}'; to run them: {command}"
        for mark, command in LEFT_OUT.items()
        if f"not {mark}" in marks
    ]
    return lines or ["skipped: nothing"]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    where_and_why = report.longrepr
    why = where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
    return why.removeprefix("Skipped: ")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _with_needs(reason: str) -> str:
    first = next((what for start, what in NEEDS.items() if reason.startswith(start)), None)
    return reason if first is None else f"{reason}; to run them: {first}"


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines, also where several workers ran the tests."""
    terminalreporter.write_sep("=", "skipped")
    marks = terminalreporter.config.getoption("markexpr")
    for line in skip_lines(terminalreporter.stats.get("skipped", []), marks):
        terminalreporter.write_line(line)
