"""One trainer of several processes: launching, ranks, threads."""
