"""The page: a run's rollouts, numbers and lineage in a browser, read from its folder and its buffer."""
