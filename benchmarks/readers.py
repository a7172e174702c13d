"""Five people who click through `rft view` every three seconds, in a process of their own, as browsers are.

`python -m benchmarks.readers URL COOKIES`: says `ready`, and clicks until its standard input is closed.
It has the lowest priority: people sit at other machines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

PEOPLE, PAUSE_S = 5, 3.0
_PATHS = ("/", "/s/run", "/s/run/experiences", "/s/run/rows/7", "/s/run/metric?name=trainer/reward")


@contextmanager
def readers(url: str, cookies: Mapping[str, str]) -> Iterator[None]:
    """People who click during a `with` block.

    Raises: RuntimeError if a click failed.
    """
    command = [sys.executable, "-m", "benchmarks.readers", url, json.dumps(dict(cookies))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:  # noqa: S603
        if child.stdin is None or child.stdout is None or child.stdout.readline() != "ready\n":
            raise RuntimeError("the readers did not start")
        yield
        child.stdin.close()
        if child.wait():
            raise RuntimeError(f"a click failed; the readers ended with {child.returncode}")


def _click(client: httpx.Client, gone: threading.Event, person: int) -> None:
    gone.wait(PAUSE_S * person / PEOPLE)
    turn = person
    while not gone.is_set():
        client.get(_PATHS[turn % len(_PATHS)]).raise_for_status()
        turn += 1
        gone.wait(PAUSE_S)


def main() -> None:
    """Click."""
    os.nice(19)
    gone = threading.Event()
    with (
        httpx.Client(base_url=sys.argv[1], cookies=json.loads(sys.argv[2]), timeout=60) as client,
        ThreadPoolExecutor(PEOPLE) as people,
    ):
        clicking = [people.submit(_click, client, gone, person) for person in range(PEOPLE)]
        print("ready", flush=True)
        sys.stdin.read()
        gone.set()
        for one in clicking:
            one.result()


if __name__ == "__main__":
    main()
