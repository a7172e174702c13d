"""What a run tells while it goes on: metrics, trackers, the Prometheus endpoint."""
