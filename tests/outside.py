"""The environment of a person's shell, as it was before the tests changed it for themselves."""

from __future__ import annotations

import os
from pathlib import Path

_TRUSTED, _BEFORE = "SSL_CERT_FILE", "RFT_TEST_TRUSTED"
"""The file of certificates that clients trust, and the one that the machine has; workers inherit both."""


def trust_nobody() -> None:
    """Each HTTP client reads every certificate that it trusts, hundreds in 20 ms: here it is one."""
    os.environ.setdefault(_BEFORE, os.environ.get(_TRUSTED, ""))
    os.environ[_TRUSTED] = str(Path(__file__).with_name("authority.pem"))


def persons_environment() -> dict[str, str]:
    """Without a checkout, and with the machine's certificates."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", _TRUSTED)}
    return {**env, _TRUSTED: env[_BEFORE]} if env[_BEFORE] else env
