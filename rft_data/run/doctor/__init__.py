"""What a machine has and lacks for runs: versions, hardware, disk, ports."""
