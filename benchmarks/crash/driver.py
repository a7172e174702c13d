"""Plans the kills from a seed, carries them out, and has each judged by a checker in a fresh process.

A life is one folder. In every other one the run is a client of a hub in a process of its own, and one of
the two, or both, are killed.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import time
import traceback
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.crash.check import Findings, check
from benchmarks.crash.children import Child, killed, says_fault, start, start_role
from benchmarks.crash.orders import Orders

FAILPOINTS = {
    "store.commit": 30,
    "append.ack": 10,
    "lease.granted": 3,
    "settle.consumed": 2,
    "compact.merged": 2,
    "publish.renamed": 3,
    "checkpoint.written": 2,
    "store.write": 30,
    "store.committed": 30,
    "store.synced": 30,
    "settle.consume": 2,
    "compact.merge": 2,
    "compact.cleaned": 6,
    "publish.written": 3,
    "publish.recorded": 3,
    "checkpoint.sealed": 2,
}
"""Every failpoint, one of each family first, and how many passes of it a child may see before it dies."""

_KILLS_PER_LIFE = 30
"""Kills before the folder is finished in peace, checked, and given up for a new one."""
_RANDOM_EVERY = 3
"""Every third kill comes at a random moment."""
_LONGEST_S = 0.9
_FAILPOINT_WAIT_S = 6.0
_PEACE_S = 90.0
_WRONG = ("lost", "duplicated", "torn_groups", "trained_twice", "faults")


@dataclass
class Report:
    """Findings of a whole run."""

    kills: int = 0
    acked: int = 0
    """Rows acknowledged."""
    lost: int = 0
    duplicated: int = 0
    torn_groups: int = 0
    trained_twice: int = 0
    faults: int = 0
    """Anything else that should not be; see stderr."""
    lives: int = 0
    """Folders used, each ended in peace and checked."""
    trained: int = 0
    """Gradient steps that a checkpoint holds."""
    victims: dict[str, int] = field(default_factory=dict)
    """Kills by what was killed: a whole run, or a hub's owner, its client, or both."""
    at_failpoint: dict[str, int] = field(default_factory=dict)
    """Kills per failpoint."""
    never_hit: list[str] = field(default_factory=list)
    """Failpoints that were promised and never reached."""
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing wrong was found."""
        return not any(getattr(self, name) for name in _WRONG)

    @property
    def sound(self) -> bool:
        """Whether every promise held, this program's own included."""
        return self.clean and not self.never_hit

    def take(self, found: Findings) -> None:
        """Add the findings of one check."""
        for name in _WRONG[:-1]:
            setattr(self, name, getattr(self, name) + getattr(found, name))
        self.faults += len(found.faults)

    def as_json(self) -> str:
        """The last line of stdout."""
        return json.dumps({**asdict(self), "sound": self.sound})


class Driver:
    """Carries out one run of the harness."""

    def __init__(self, kills: int, seed: int, folder: Path, mutation: str = "") -> None:
        """`folder` holds the lives; `mutation` names a way to break the system."""
        self.report = Report()
        self._kills = kills
        self._folder = folder
        self._mutation = mutation
        self._rng = np.random.default_rng(seed)
        self._plan: deque[str] = deque(FAILPOINTS)
        self._planned = 0
        self._promised: set[str] = set()
        self._hits: Counter[str] = Counter()
        self._victims: Counter[str] = Counter()

    def run(self) -> Report:
        """All kills, life after life; a life with a finding is left on the disk and ends the run."""
        begin, report = time.monotonic(), self.report
        while report.kills < self._kills and report.clean:
            self._life(self._folder / f"life-{report.lives}")
        report.at_failpoint, report.victims = dict(self._hits), dict(self._victims)
        report.never_hit = sorted(self._promised - self._hits.keys())
        report.seconds = round(time.monotonic() - begin, 1)
        return report

    def _life(self, root: Path) -> None:
        root.mkdir(parents=True)
        number, share = self.report.lives, min(_KILLS_PER_LIFE, (self._kills + 1) // 2)
        last = min(self._kills, self.report.kills + share)
        hub = (f"hub://127.0.0.1:{_free_port()}", secrets.token_hex(8)) if number % 2 else None
        orders = Orders(root, 0, 0, "power" if number % 4 > 1 else "process", hub)
        while self.report.kills < last and self.report.clean:
            orders = replace(orders, attempt=orders.attempt + 2, seed=int(self._rng.integers(1 << 30)))
            (self._kill_run if hub is None else self._kill_hub_or_client)(orders)
            self._judge(root)
        if self.report.clean:
            self._in_peace(replace(orders, attempt=orders.attempt + 2, finish=True))
            found = self._judge(root)
            self.report.acked += found.acked
            self.report.trained += found.trained
            self.report.lives += 1
        if self.report.clean:
            shutil.rmtree(root)

    # --- kills -------------------------------------------------------------------------------------

    def _kill_run(self, orders: Orders) -> None:
        """Owner, writers and consumer die together."""
        name, at = self._next_failpoint(orders)
        child = self._start(orders, False, name, at)
        self._see_killed(child, name, "run")

    def _kill_hub_or_client(self, orders: Orders) -> None:
        """One of the two dies while the other goes on; it is started again; then both die."""
        name, at = self._next_failpoint(orders)
        in_client = name.startswith(("publish", "checkpoint")) or (not name and self._rng.random() < 0.5)
        armed, plain = (name, at), ("", 0)
        hub = self._start(orders, True, *(plain if in_client else armed))
        client = self._start(orders, False, *(armed if in_client else plain))
        self._see_killed(client if in_client else hub, name, "client" if in_client else "hub")
        if in_client:
            client = self._start(replace(orders, attempt=orders.attempt + 1), False, "", 0)
        else:
            hub = self._start(orders, True, "", 0)
        client_status = client.wait(float(self._rng.uniform(0.05, _LONGEST_S)))
        for child, status in ((hub, None), (client, client_status)):
            self._expect_killed(child.kill() if status is None else status)
        self._count("hub and client")

    def _next_failpoint(self, orders: Orders) -> tuple[str, int]:
        """Failpoint at which the next child is to die, and at which pass; no name: at a random moment."""
        self._planned += 1
        if self._planned % _RANDOM_EVERY == 0:
            return "", 0
        name = self._plan.popleft()
        if name == "store.synced" and orders.durability == "process":
            self._plan.append(name)
            name = self._plan.popleft()
        self._promised.add(name)
        return name, 1 + int(self._rng.integers(FAILPOINTS[name]))

    def _start(self, orders: Orders, owner: bool, name: str, at: int) -> Child:
        return start_role(
            orders, owner=owner, failpoint=(name, at) if name else None, mutation=self._mutation
        )

    def _see_killed(self, child: Child, name: str, victim: str) -> None:
        """Wait until it dies at its failpoint, or kill it."""
        status = child.wait(_FAILPOINT_WAIT_S if name else float(self._rng.uniform(0.01, _LONGEST_S)))
        if name and status is not None and killed(status):
            self._hits[name] += 1
            self._plan.append(name)
        elif name:
            self._plan.appendleft(name)
        self._expect_killed(child.kill() if status is None else status)
        self._count(victim)

    def _expect_killed(self, status: int) -> None:
        if not killed(status) and not says_fault(status):
            self._fault(f"a child ended with status {status} before it was killed")

    def _count(self, victim: str) -> None:
        self.report.kills += 1
        self._victims[victim] += 1

    # --- what must hold ----------------------------------------------------------------------------

    def _in_peace(self, orders: Orders) -> None:
        """Let a run go on to its checkpoint and check its own books."""
        hub = None if orders.hub is None else self._start(orders, True, "", 0)
        child = self._start(orders, False, "", 0)
        status = child.wait(_PEACE_S)
        if status is None:
            child.kill()
            self._fault(f"a run that was left alone did not reach its checkpoint in {_PEACE_S:g} s")
        elif status:
            self._fault(f"a run that was left alone ended with status {status}")
        if hub is not None:
            hub.kill()

    def _judge(self, root: Path) -> Findings:
        """Check in a process of its own; one that cannot even open the buffer is a finding."""
        path = root / "findings.json"
        path.unlink(missing_ok=True)
        child = start(lambda: path.write_text(json.dumps(_checked(root).as_dict())))
        if child.wait(_PEACE_S) is None:
            child.kill()
        found = Findings(**json.loads(path.read_text())) if path.is_file() else Findings(faults=["no check"])
        self.report.take(found)
        if not found.sound:
            self._say(f"{root}: {json.dumps(found.as_dict(), indent=1)}")
        return found

    def _fault(self, what: str) -> None:
        self._say(what)
        self.report.faults += 1

    def _say(self, what: str) -> None:
        print(f"after {self.report.kills} kills: {what}", file=sys.stderr)


def _checked(root: Path) -> Findings:
    try:
        return check(root)
    except Exception:  # noqa: BLE001 - whatever it is, the reopened buffer is not sound
        return Findings(faults=[traceback.format_exc()[-2000:]])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
