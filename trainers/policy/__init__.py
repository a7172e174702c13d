"""Policy-gradient steps on leased rows, on top of TRL."""
