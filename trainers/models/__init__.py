"""Model folders: weights, adapters, tiny models, and TRL's options."""
