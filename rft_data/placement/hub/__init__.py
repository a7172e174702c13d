"""The hub over the wire: one owner process serves its buffer and ledgers to clients in other processes."""

from rft_data.placement.hub.client import HubClient
from rft_data.placement.hub.server import HubServer

__all__ = ["HubClient", "HubServer"]
