"""What RL adds in the quickstart to the best supervised run on the same data, and what choosing data adds."""
