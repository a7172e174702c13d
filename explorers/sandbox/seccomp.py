"""A seccomp filter that refuses system calls which no graded program needs; bubblewrap installs it.

`memfd_create` and System V memory could hold more than the limits say; the others are where the kernel was
broken most often. A refused call fails with EPERM, as in a container.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Mapping

from rft_data.core.errors import SandboxError

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_X32 = 0x40000000
"""System calls of the x32 ABI have this bit; they would go round a list of numbers."""
_NEWER = (425, 426, 427, 447)
"""io_uring_setup, io_uring_enter, io_uring_register, memfd_secret: the same number everywhere."""
_ARCHITECTURES: Mapping[str, tuple[int, tuple[int, ...]]] = {
    # memfd_create, shmget, shmat, ptrace, add_key, request_key, keyctl, userfaultfd, bpf, perf_event_open,
    # process_vm_readv, process_vm_writev, kexec_load, init_module, finit_module, mount, unshare, setns
    "x86_64": (
        0xC000003E,
        (319, 29, 30, 101, 248, 249, 250, 323, 321, 298, 310, 311, 246, 175, 313, 165, 272, 308),
    ),
    "aarch64": (
        0xC00000B7,
        (279, 194, 196, 117, 217, 218, 219, 282, 280, 241, 270, 271, 104, 105, 273, 40, 97, 268),
    ),
}
"""Machine to its audit architecture and the numbers of these calls there."""


def denying_filter() -> int:
    """A file descriptor from which the filter is read; the caller closes it.

    Raises: SandboxError on a machine whose numbers are not listed here.
    """
    found = _ARCHITECTURES.get(platform.machine())
    if found is None:
        raise SandboxError(
            f"no seccomp filter is written for the processor {platform.machine()}; there is one for "
            f"{', '.join(_ARCHITECTURES)}."
        )
    reading, writing = os.pipe()
    os.write(writing, seccomp_program(*found))
    os.close(writing)
    return reading


def seccomp_program(architecture: int, numbers: tuple[int, ...]) -> bytes:
    """The instructions: kill on another architecture, refuse the numbers, allow the rest."""
    denied = [*numbers, *_NEWER]
    last = len(denied)
    return b"".join(
        [
            _instruction(_LOAD, 0, 0, _ARCHITECTURE_AT),
            _instruction(_EQUAL, 1, 0, architecture),
            _instruction(_RETURN, 0, 0, _KILL),
            _instruction(_LOAD, 0, 0, _NUMBER_AT),
            _instruction(_AT_LEAST, last + 1, 0, _X32),
            *(_instruction(_EQUAL, last - n, 0, number) for n, number in enumerate(denied)),
            _instruction(_RETURN, 0, 0, _ALLOW),
            _instruction(_RETURN, 0, 0, _REFUSE),
        ]
    )


def _instruction(code: int, if_true: int, if_false: int, operand: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)
