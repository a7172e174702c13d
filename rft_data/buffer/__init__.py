"""The buffer: one LanceDB folder that is log, training queue, offline dataset and analytics table."""

from rft_data.buffer.buffer import Buffer
from rft_data.buffer.intake import Appended

__all__ = ["Appended", "Buffer"]
