"""The key of an endpoint, which stands in an environment variable and nowhere else."""

from __future__ import annotations

import os

from rft_data.core.errors import RftError


def endpoint_key(variable: str | None, whose: str, error: type[RftError]) -> str | None:
    """The key that a variable holds; None without a variable: no key is sent.

    Args: whose: begins the messages, for example "the judge's key". error: what is raised.
    Raises: `error` when the variable is not set, or holds no key.
    """
    if variable is None:
        return None
    # files that keys are read from end in a line break
    key = os.environ.get(variable, "").strip()
    if not key:
        raise error(
            f"{whose} must be in the environment variable '{variable}', which is not set; set it, or take "
            "'api_key_env' out of the recipe."
        )
    if not (key.isascii() and key.isprintable()):
        raise error(
            f"{whose} in the environment variable '{variable}' has characters that no key has; wanted "
            "printable ASCII. Set it again."
        )
    return key
