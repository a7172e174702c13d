"""The buffer: one LanceDB folder that is log, training queue, offline dataset and analytics table."""

from rft_data.buffer.appended import Appended
from rft_data.buffer.buffer import Buffer

__all__ = ["Appended", "Buffer"]
