"""Finding and mending damage in a buffer's folder, also one that no longer opens."""

from rft_data.care.damage import Finding, Report
from rft_data.care.losses import Repaired
from rft_data.care.repair import repair
from rft_data.care.verify import verify

__all__ = ["Finding", "Repaired", "Report", "repair", "verify"]
