"""A run that is on an object store: it works in a folder of its machine and stores what is complete."""

from rft_data.run.mirror.mirror import Mirror
from rft_data.run.mirror.seen import run_folder, stop_run

__all__ = ["Mirror", "run_folder", "stop_run"]
