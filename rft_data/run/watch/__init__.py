"""The numbers of a run while it goes on: metrics, trackers, the Prometheus endpoint."""
