"""Whether processes that tests started are still there."""

import psutil


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE
