"""Trinity-RFT's own SQL storage on the same machine, in the virtual environment that TRINITY_PYTHON names.

`make trinity` builds that environment. Without it there is nothing to compare with and no figure.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

_SCRIPT = Path(__file__).with_name("trinity_storage.py")
_DEFAULT = Path(".trinity/bin/python")


def rates(rows: int) -> dict[str, float]:
    """Rows per second: `write_8`, `write_64` (rows a call) and `read_512`; empty when it is not installed."""
    python = Path(os.environ.get("TRINITY_PYTHON", _DEFAULT))
    if not python.exists():
        print(f"Trinity-RFT is not installed at {python} (make trinity); its bars are left out", flush=True)
        return {}
    done = subprocess.run(  # noqa: S603 - our own script under an interpreter the user named
        [str(python), str(_SCRIPT), str(rows)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
