"""One step after another: explore, judge, lease, train, publish; and taking a stopped run up again."""
