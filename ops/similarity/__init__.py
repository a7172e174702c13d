"""Near-duplicates and diversity, by words and by meaning."""
