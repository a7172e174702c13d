"""The numbers of a run: what they are (`facts`), and how they are written down and passed on (`log`)."""

from rft_data.metrics.facts import Window, window_facts
from rft_data.metrics.log import MetricsLog, Point, Tracker

__all__ = ["MetricsLog", "Point", "Tracker", "Window", "window_facts"]
