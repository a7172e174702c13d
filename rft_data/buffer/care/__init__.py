"""Finds and repairs damage in a buffer, also in one that no longer opens."""

from rft_data.buffer.care.damage import Finding, Report
from rft_data.buffer.care.on_store import repair_stored, verify_stored
from rft_data.buffer.care.repair import repair
from rft_data.buffer.care.repair_report import Repaired
from rft_data.buffer.care.verify import verify

__all__ = ["Finding", "Repaired", "Report", "repair", "repair_stored", "verify", "verify_stored"]
