"""The first process of a node (see nodes.py): gives it folders of its own, and ends when the tests do.

Run by `unshare` as `python -S node_init.py NAME HOME SHARED_MEMORY`; its input is a pipe from the tests.
"""

import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Mount, say `up`, then wait for the end of the pipe."""
    name, home, memory = sys.argv[1:]
    for folder, size in (("/tmp", "4g"), ("/dev/shm", memory)):  # noqa: S108
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    os.makedirs(home)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with open("/proc/sys/kernel/hostname", "w") as hostname:
        hostname.write(name)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    threading.Thread(target=_collect_children, daemon=True).start()
    sys.stdin.read()


def _collect_children() -> None:
    """Processes whose parents have ended are this one's to collect."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait({signal.SIGCHLD})


main()
