"""A Ray cluster as its users start it: `ray start --head` with the job server, and nodes that join and leave.

Every node is processes of this machine, in a session of their own; only these are ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.ports import free_port
from tests.ray_workers import NODE_CODE, workers_environment
from tests.waiting import wait_for

_RAY = [sys.executable, "-c", f"{NODE_CODE}from ray.scripts.scripts import main; main()"]
_STORE = f"--object-store-memory={100 << 20}"
_PORTS = ["--min-worker-port=0", "--max-worker-port=0"]
"""Of workers: any that is free, not those from 10002 on, which another Ray of this machine uses too."""
_HERE = "127.0.0.1"


_COMMANDS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
"""Fields of an autoscaler's configuration that Ray wants even where they say nothing."""
_GROWS = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
"""Environment of a head whose autoscaler starts processes, and looks every second for what is asked for."""


class Head:
    """The head of a cluster that runs."""

    def __init__(self, folder: Path) -> None:
        """`folder`: its own; a short path, for sockets."""
        self.folder = folder
        self.address = f"{_HERE}:{free_port()}"
        self.jobs = f"http://{_HERE}:{free_port()}"
        self._environment = _environment()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._opened = ExitStack()

    def open(self, cpus: float, grows_by: float = 0) -> None:
        """Start it; returns when jobs may be submitted.

        Args: grows_by: CPUs of the one node that its autoscaler starts when something asks for it; 0: none.
        """
        ports = {
            "port": self.address.rpartition(":")[2],
            "dashboard-port": self.jobs.rpartition(":")[2],
            "ray-client-server-port": free_port(),
            "dashboard-agent-listen-port": 0,
        }
        options = [f"--{name}={port}" for name, port in ports.items()]
        if grows_by:
            self._environment |= _GROWS
            options.append(f"--autoscaling-config={_growing(self.folder, self.address, grows_by)}")
        self.start("head", "--head", f"--num-cpus={cpus}", *options, f"--temp-dir={self.folder}")
        wait_for(lambda: _listens(int(ports["dashboard-port"])))

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Start a node of the cluster; its output goes to a file of that name."""
        log = self._opened.enter_context((self.folder / f"{name}.log").open("wb"))
        command = [*_RAY, "start", "--block", f"--node-ip-address={_HERE}", _STORE, "--disable-usage-stats"]
        process = subprocess.Popen(
            [*command, *_PORTS, *options],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=self._environment,
        )
        self._processes.append(process)
        return process

    def join(self, name: str, cpus: float) -> subprocess.Popen[bytes]:
        """Start another node; it joins when it is up."""
        return self.start(name, f"--address={self.address}", f"--num-cpus={cpus}")

    def ray(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `ray ARGUMENTS`, and wait."""
        return subprocess.run(
            [*_RAY, *arguments], capture_output=True, text=True, check=False, env=self._environment
        )

    def drain(self, node_id: str) -> None:
        """Tell Ray that a node is to be taken away, as a cloud that preempts it does; Ray ends nothing."""
        told = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=preempted"]
        deadline = "--deadline-remaining-seconds=30"
        done = self.ray("drain-node", f"--address={self.address}", f"--node-id={node_id}", *told, deadline)
        assert done.returncode == 0, done.stderr

    def close(self) -> None:
        """End every node."""
        for process in reversed(self._processes):
            kill_node(process)
        self._opened.close()


def kill_node(process: subprocess.Popen[bytes]) -> None:
    """Kill every process of a node at once, as when its power fails; idempotent."""
    if process.poll() is None:
        mine = psutil.Process(process.pid)
        for one in [*mine.children(recursive=True), mine]:
            try:
                os.kill(one.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    process.wait()


def _growing(folder: Path, address: str, cpus: float) -> Path:
    """The configuration of an autoscaler whose nodes are processes of this machine."""
    nodes = {
        "head": {"resources": {}, "node_config": {}, "max_workers": 0},
        "grown": {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": 1},
    }
    said = {
        "cluster_name": "growing",
        "max_workers": 1,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 60,
        "provider": {"type": "fake_multinode", "gcs_address": address},
        "head_node_type": "head",
        "available_node_types": nodes,
    }
    empty = {key: {} for key in ("auth", "head_node", "worker_nodes", "file_mounts")}
    none = {key: [] for key in (*_COMMANDS, "cluster_synced_files", "rsync_exclude", "rsync_filter")}
    config = folder / "autoscaler.json"
    config.write_text(json.dumps({**said, **empty, **none, "file_mounts_sync_continuously": False}))
    return config


def _environment() -> dict[str, str]:
    """Without tokens: the cluster listens on loopback only.

    A node that is gone is noticed after 5 s, one that is slow after 50.
    """
    given = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return {
        **given,
        **workers_environment(),
        "RAY_AUTH_MODE": "disabled",
        "RAY_health_check_period_ms": "1000",
    }


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HERE, port)) == 0


@contextmanager
def ray_head(cpus: float, grows_by: float = 0) -> Iterator[Head]:
    """A cluster of one node, ended after the block with all that joined it."""
    pytest.importorskip("aiohttp_cors", reason="Ray has no job server without its extra 'default'")
    folder = Path(tempfile.mkdtemp(prefix="rft-", dir="/tmp"))  # sockets need a short path
    head = Head(folder)
    try:
        head.open(cpus, grows_by)
        yield head
    finally:
        head.close()
        shutil.rmtree(folder, ignore_errors=True)
