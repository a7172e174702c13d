"""Ports that the tests give their servers are given once, by whichever process."""

import json
import subprocess
import sys

from tests.ports import _ALL, _FIRST, free_port

_TAKES = """\
import itertools, json, sys
from tests import ports
ports._numbers = itertools.count(int(sys.argv[1]))
print(json.dumps([ports.free_port() for _ in range(3)]), flush=True)
sys.stdin.read()
"""


def test_another_process_is_not_given_a_port_before_its_server_listens() -> None:
    ours = [free_port() for _ in range(2)]
    command = [sys.executable, "-c", _TAKES, str(ours[0] - _FIRST)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = json.loads(other.stdout.readline())
        other.communicate("")
    assert len(set(theirs)) == 3
    assert not set(ours) & set(theirs)
    assert all(_FIRST <= port < _FIRST + _ALL for port in ours + theirs)
