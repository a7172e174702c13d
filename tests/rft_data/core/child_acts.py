"""What the children of `test_children.py` do: `python -m tests.rft_data.core.child_acts FD PARENT ACT`."""

import os
import subprocess
import sys
import time

from rft_data.core.children import Child, connected, limit_memory


def main() -> None:
    """Answer each line with itself after the act."""
    end = connected()
    act = sys.argv[3]
    if act == "write":
        sys.stdout.write("on stdout\n" + "x" * 100_000 + "\n")
        sys.stderr.write(f"{os.environ.get('CHILD_ACTS')} on stderr, no newline")
        sys.exit(3)
    if act == "start":
        started = subprocess.Popen(["sleep", "600"])
        end.sendall(f"{started.pid}\n".encode())
    if act == "detach":
        started = subprocess.Popen(["sleep", "600"], start_new_session=True)
        end.sendall(f"{started.pid}\n".encode())
    if act == "escape":
        started = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
        end.sendall(f"{started.pid}\n".encode())
    if act == "nest":
        end.sendall(Child("tests.rft_data.core.child_acts", "detach").line(60.0) + b"\n")
    if act == "leak":
        limit_memory(64 << 20)
        bytearray(256 << 20)
    for line in end.makefile("rb"):
        end.sendall(line)
        if act == "hang":
            time.sleep(600)


if __name__ == "__main__":
    main()
