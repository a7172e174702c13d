"""The loop of a run: explore, judge, lease, train, publish, step after step; and resuming a stopped run."""
