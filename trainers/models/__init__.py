"""Model folders: tiny models, weights, adapters, TRL options."""
