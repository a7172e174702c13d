"""A run's status in lines for a terminal."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from rft_data.core.text import shown
from rft_data.core.words import MetricRole, RunState
from rft_data.run.status import Progress, RunStatus

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 40
"""Points of the reward's curve."""
_LOW_DISK = 0.1
_LATE, _LATE_S = 10, 60.0
"""A step is late after so many times a step's time, and so many seconds."""
_HISTOGRAMS = ("lag_in_flight", "lag_in_queue")
_RATES = ("steps_per_s", "generated_tokens_per_s", "trained_tokens_per_s")


def status_text(status: RunStatus) -> str:
    """A run's status as a small table."""
    return "\n".join(f"{name:<12}{text}".rstrip() for name, text in _lines(status))


def _lines(status: RunStatus) -> Iterator[tuple[str, str]]:
    now, record = status.standing, status.standing.record
    yield "run", f"{shown(status.run_id)} in {status.run_dir}"
    yield "state", now.state + (f": {shown(now.why, 160)}" if now.why else "")
    if record is not None:
        times = f"start {record.attempt + 1} at {_moment(record.started_at)}"
        beat = f", last heartbeat {duration(max(0.0, time.time() - record.beat_at))} ago" if now.alive else ""
        yield "process", f"{record.pid} on {record.host}, {times}{beat}"
        if record.phase and now.alive:
            since = "" if record.total is not None or not record.phase_at else _for(record.phase_at)
            yield "at", f"{shown(record.phase, 100)}{since}"
        if record.sandbox:
            yield "sandbox", shown(record.sandbox, 300)
    if status.groups is not None:
        yield "played", "{} of {} groups".format(*status.groups)
    else:
        yield from _steps(status)
    if status.progress is not None:
        yield from _numbers(status.progress)
    yield from _roles(status)
    if status.books:
        found = "  ".join(f"{state} {count}" for state, count in status.books.items() if count)
        wrong = f"  UNACCOUNTED FOR: {status.residual}" if status.residual else ""
        yield "groups", (found or "none") + wrong
    if status.rows:
        yield "rows", "  ".join(f"{name} {count}" for name, count in status.rows.items())
    if status.checkpoint is not None:
        yield "checkpoint", f"step {status.checkpoint[0]}, {duration(status.checkpoint[1])} ago"
    low = "  LOW" if status.disk_free < _LOW_DISK * status.disk_total else ""
    yield "disk", f"{status.disk_free / 2**30:.1f} GiB free of {status.disk_total / 2**30:.1f}{low}"


def _steps(status: RunStatus) -> Iterator[tuple[str, str]]:
    progress = status.progress
    of = "" if status.steps is None else f" of {status.steps}"
    if progress is None:
        yield "step", f"0{of}"
        return
    version = "" if progress.version is None else f", policy version {progress.version}"
    ago = "" if progress.last_step_s is None else f", {duration(progress.last_step_s)} ago"
    if status.standing.alive and _late(progress):
        ago += f"  LATE: more than {_LATE} times a step's time; look at rft logs"
    yield "step", f"{progress.step}{of}{version}{ago}"
    rates = [] if progress.step_s is None else [f"{progress.step_s:.3g} s a step"]
    loop = progress.numbers.get("loop", {})
    rates += [
        f"{loop[key]:.3g} {key.replace('_per_s', '/s').replace('_', ' ')}" for key in _RATES if key in loop
    ]
    if status.eta_s is not None and status.standing.state in (RunState.RUNNING, RunState.STOPPING):
        rates.append(f"{duration(status.eta_s)} to go")
    if rates:
        yield "pace", ", ".join(rates)


def _late(progress: Progress) -> bool:
    """Whether the next step takes far longer than the ones before: the run may be stuck."""
    if progress.last_step_s is None or progress.step_s is None:
        return False
    return progress.last_step_s > max(_LATE_S, _LATE * progress.step_s)


def _for(began: float) -> str:
    return f", for {duration(max(0.0, time.time() - began))}"


def _numbers(progress: Progress) -> Iterator[tuple[str, str]]:
    if progress.reward:
        yield "reward", f"{_number(progress.reward[-1])}  {curve(progress.reward)}"
    failures = _failures(progress.numbers)
    if failures:
        yield "no reward", f"last step: {failures}"
    burned = _burned(progress.numbers)
    if burned:
        yield "burned", f"last step: {burned}"
    for name in _HISTOGRAMS:
        found = _histogram(progress.numbers, name)
        if found:
            text = "  ".join(f"{lag}: {count:g}" for lag, count in found.items())
            yield name.replace("lag_in_", "lag, "), f"groups by optimizer steps  {text}"


def _failures(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """Rollouts of all explorers that failed or were not scored, by cause; empty where there were none."""
    found: Counter[str] = Counter()
    for role, values in numbers.items():
        if role.startswith(MetricRole.EXPLORER):
            for name, said in (("rollouts_unscored", "unscored"), ("rollouts_failed", "failed")):
                causes = [key for key in values if key.startswith(f"{name}/")]
                found.update({f"{said} by {key.partition('/')[2]}": int(values[key]) for key in causes})
    return "  ".join(f"{what} {count}" for what, count in sorted(found.items()))


def _burned(numbers: Mapping[str, Mapping[str, float]]) -> str:
    """Tokens and rollout seconds that were for nothing, by cause; empty where there were none."""
    tokens, seconds, ratios = Counter[str](), defaultdict[str, float](float), []
    for role, values in numbers.items():
        for key, value in values.items():
            name, _, cause = key.partition("/")
            if name == "burned_tokens":
                tokens[cause] += int(value)
            elif name == "burned_s":
                seconds[cause] += value
            elif name == "kept_length_ratio":
                ratios.append(f"{shown(role)} {value:.2f}")
    if not tokens and not seconds:
        return ""
    causes = [
        f"{shown(cause)} {tokens[cause]} tokens"
        + (f" in {duration(seconds[cause])}" if cause in seconds else "")
        for cause in sorted({*tokens, *seconds})
    ]
    lengths = f"  kept lengths / all: {', '.join(ratios)}" if ratios else ""
    return "  ".join(causes) + lengths


def _histogram(numbers: Mapping[str, Mapping[str, float]], name: str) -> dict[str, float]:
    """A histogram whichever role reports it, in order of its buckets."""
    found = {
        key.partition("/")[2]: value
        for values in numbers.values()
        for key, value in values.items()
        if key.startswith(f"{name}/") and value
    }
    return dict(
        sorted(found.items(), key=lambda item: int(item[0].rstrip("+")) if item[0][:1].isdigit() else 0)
    )


def _roles(status: RunStatus) -> Iterator[tuple[str, str]]:
    for role in status.roles:
        parts = []
        if role.bubble is not None:
            parts.append(f"busy {1 - role.bubble:>4.0%}  idle {role.bubble:>4.0%}")
        if role.heard_s is not None and status.standing.alive:
            parts.append(f"heard {duration(role.heard_s)} ago")
        yield shown(role.name, 11), "  ".join(parts)


def curve(values: Sequence[float]) -> str:
    """A line of bars, at most _WIDTH of them, each the mean of its share of the values, oldest first."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    size = math.ceil(len(finite) / _WIDTH)
    means = [sum(part) / len(part) for i in range(0, len(finite), size) if (part := finite[i : i + size])]
    low, high = min(means), max(means)
    top = len(_BARS) - 1
    bars = "".join(_BARS[round((m - low) / (high - low) * top) if high > low else 0] for m in means)
    return f"{bars}  {_number(low)} to {_number(high)} over {len(finite)} steps"


def duration(seconds: float) -> str:
    """Seconds in one or two units: `7 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = round(seconds)
    for unit, name, smaller, less in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {less}" if rest else "")
    return f"{whole} s"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _moment(unix: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix))
