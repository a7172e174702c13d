"""Keys of trajectories. They are made from one secret, so nobody stores them."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode


class TrajectoryKeys:
    """The key of each trajectory by its id; with the same secret it has the same key again."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def key(self, name: str) -> str:
        """The key of a trajectory."""
        made = hmac.new(self._secret, name.encode(), hashlib.sha256).digest()
        return urlsafe_b64encode(made).decode().rstrip("=")

    def opens(self, name: str, given: bytes) -> bool:
        """Whether `given` is the key of a trajectory, open or not."""
        return hmac.compare_digest(self.key(name).encode(), given)
