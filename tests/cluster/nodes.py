"""Several nodes on one Linux machine: each has its own network address, /tmp, /dev/shm and processes.

A node is a set of namespaces around one small process. All nodes hang on a bridge that is in a namespace of
its own, so nothing is made in the machine's network. When the small process ends, the kernel kills the rest
of its node; it ends with the tests too, however they end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

HOME = "/tmp/home"  # noqa: S108 - of a node, in its own /tmp
SWITCH = "switch"
_NETWORK = "10.77.0"
_TOOLS = ("ip", "nsenter", "unshare", "mount")
RAY_PORT = 6379
_SHARED_MEMORY = "512m"
_OBJECT_STORE = 100 << 20
_INIT = Path(__file__).with_name("node_init.py")
_ROOT = Path(__file__).parents[2]
_SECONDS = 30.0
_HEALTH = {"RAY_health_check_timeout_ms": "5000", "RAY_health_check_failure_threshold": "3"}


@dataclass(eq=False)
class Node:
    """One node."""

    name: str
    address: str
    """Empty for the switch."""
    process: subprocess.Popen[str]
    """Its outermost process; the node ends with it."""
    pid: int
    """The node's first process, as this machine numbers it."""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """A command line that runs another one on the node."""
        return [
            "nsenter",
            "-t",
            str(self.pid),
            "-n",
            "-m",
            "-p",
            "-i",
            "-u",
            "--",
            "env",
            "-C",
            HOME,
            *arguments,
        ]

    def run(self, *arguments: str, within_s: float = _SECONDS, **more: str) -> str:
        """Run a command there and return what it prints; `more`: environment variables.

        Raises: CalledProcessError with its output in the notes.
        """
        done = subprocess.run(
            self.command(arguments),
            env=self.environment(more),
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, list(arguments))
            error.add_note(f"on {self.name}: {done.stdout}{done.stderr}")
            raise error
        return done.stdout

    def start(self, *arguments: str, log: str, **more: str) -> subprocess.Popen[bytes]:
        """Start a command there; `log`: a file in the node's home for its output."""
        with self.file(log).open("wb") as output:
            return subprocess.Popen(
                self.command(arguments), env=self.environment(more), stdout=output, stderr=output
            )

    def start_ray(self, head: Node | None = None, *, cpus: int = 0, holds: Sequence[str] = ()) -> None:
        """Start a Ray node here: the head of a cluster, or one that joins the cluster of `head`.

        A node that is silent for some 20 seconds is taken for dead; Ray's own default is a minute.
        `holds`: names of resources of which this node has 1 each.
        """
        where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"]
        if head is not None:
            where = [f"--address={head.address}:{RAY_PORT}"]
        has = json.dumps(dict.fromkeys(holds, 1))
        ray = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
        options = [f"--node-ip-address={self.address}", f"--num-cpus={cpus}", f"--resources={has}"]
        options += [f"--object-store-memory={_OBJECT_STORE}", "--disable-usage-stats"]
        self.run(*ray, "start", *where, *options, within_s=120.0, **_HEALTH)

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        """Of a process there: that of the tests, with the node's own home; it finds this code."""
        own = {"HOME": HOME, "TMPDIR": "/tmp", "PYTHONPATH": str(_ROOT)}  # noqa: S108
        return {**os.environ, **own, **more}

    def file(self, inside: str) -> Path:
        """A file or folder of the node's home as this process reaches it; the node must be up."""
        return Path(f"/proc/{self.pid}/root{HOME}") / inside

    def kill(self) -> None:
        """Kill every process of the node at once, as when its power fails; idempotent."""
        self.process.kill()
        self.process.communicate()


class Nodes:
    """Nodes that are up."""

    def __init__(self, switch: Node, made: ExitStack) -> None:
        """`made`: the nodes end with it."""
        self.switch = switch
        self.all: list[Node] = []
        self._made = made

    def __getitem__(self, place: int) -> Node:
        return self.all[place]

    def add(self, number: int) -> None:
        """Bring node `number` up, which is a new one or one that was killed: then with empty folders."""
        node = _started(self._made, f"node{number}", f"{_NETWORK}.{number}")
        port = _port(node)
        cable = ["type", "veth", "peer", "name", "eth0", "netns", str(node.pid)]
        # the switch sees the machine's process numbers only through the machine's /proc
        switch = ["nsenter", "-t", str(self.switch.pid), "-n", "--", "ip", "link"]
        subprocess.run([*switch, "del", port], capture_output=True, check=False)  # of the killed one
        subprocess.run([*switch, "add", port, *cable], check=True)
        self.switch.run("ip", "link", "set", port, "master", "bridge", "up")
        node.run("ip", "address", "add", f"{node.address}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")
        node.run("ip", "route", "add", "default", "dev", "eth0")  # its address is the one it is known by
        self.all[number - 1 :] = [node, *self.all[number:]]

    def cut(self, node: Node) -> None:
        """Cut a node's cable: what is sent is lost, and neither end is told."""
        self._link(node, "down")

    def mend(self, node: Node) -> None:
        """Mend it."""
        self._link(node, "up")

    @contextmanager
    def is_cut(self, node: Node) -> Iterator[None]:
        """Without its cable for a `with` block."""
        self.cut(node)
        try:
            yield
        finally:
            self.mend(node)

    def shape(self, node: Node, *, delay_ms: int = 0, loss_percent: float = 0, rate_mbit: int = 0) -> None:
        """Delay, lose or slow down what a node receives; without a value nothing is done to it any more.

        Skips the test where this kernel cannot do it.
        """
        subprocess.run(self._tc("del", node, []), capture_output=True, check=False)
        rules: list[str] = []
        if delay_ms or loss_percent:
            rules = ["netem", "delay", f"{delay_ms}ms", "loss", f"{loss_percent}%"]
            rules += ["rate", f"{rate_mbit}mbit"] if rate_mbit else []
        elif rate_mbit:
            rules = ["tbf", "rate", f"{rate_mbit}mbit", "burst", "256kbit", "latency", "400ms"]
        if rules:
            done = subprocess.run(self._tc("add", node, rules), capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no tc {rules[0]}: {done.stderr.strip()}")

    def _tc(self, verb: str, node: Node, rules: list[str]) -> list[str]:
        return self.switch.command(["tc", "qdisc", verb, "dev", _port(node), "root", *rules])

    def _link(self, node: Node, state: str) -> None:
        self.switch.run("ip", "link", "set", _port(node), state)


def _port(node: Node) -> str:
    """The switch's end of a node's cable."""
    return f"to-{node.name}"


@contextmanager
def nodes_of(number: int) -> Iterator[Nodes]:
    """`number` nodes; skips the test where they cannot be made."""
    if why := missing():
        pytest.skip(f"no nodes: {why}")
    with ExitStack() as made:
        switch = _started(made, SWITCH, "")
        switch.run("ip", "link", "add", "bridge", "type", "bridge")
        switch.run("ip", "link", "set", "bridge", "up")
        nodes = Nodes(switch, made)
        for n in range(1, number + 1):
            nodes.add(n)
        yield nodes


def missing() -> str:
    """What it takes to make nodes that is not here; empty if nothing."""
    if sys.platform != "linux":
        return "they are made of Linux's namespaces"
    if lacking := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"there is no {', '.join(lacking)} (util-linux and iproute2 have them)"
    if os.geteuid():
        return "only root may make them"
    if hidden := [path for path in (sys.prefix, str(_INIT)) if path.startswith(("/tmp/", "/dev/shm/"))]:  # noqa: S108
        return f"each has its own /tmp, and {hidden[0]} would not be seen"
    tried = subprocess.run(
        ["unshare", "--net", "--", "ip", "link", "add", "bridge", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"no network namespace or bridge: {tried.stderr.strip()}" if tried.returncode else ""


def _started(made: ExitStack, name: str, address: str) -> Node:
    """A node without a cable, which ends with `made`."""
    command = [
        *("unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--mount-proc"),
        *("--kill-child=SIGKILL", "--propagation", "private", "--"),
        *(sys.executable, "-S", str(_INIT), name, HOME, _SHARED_MEMORY),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    made.callback(_end, process)
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "up\n", f"{name} did not come up: {said!r}"
    [child] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return Node(name, address, process, int(child))


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()
