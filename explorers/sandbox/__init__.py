"""Runs programs that a model wrote, so that they can harm nothing: `Sandbox`; see docs/sandbox.md."""

from __future__ import annotations

from explorers.sandbox.limits import SandboxLimits
from explorers.sandbox.program import Program, Ran
from explorers.sandbox.sandbox import Sandbox

__all__ = ["Program", "Ran", "Sandbox", "SandboxLimits"]
