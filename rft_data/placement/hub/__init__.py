"""The hub: the process that owns a buffer serves it, with its ledgers, to clients in other processes."""

from rft_data.placement.hub.client import HubClient
from rft_data.placement.hub.server import HubServer

__all__ = ["HubClient", "HubServer"]
