"""The state of a machine for runs: versions, hardware, disk, ports, and what is missing."""
