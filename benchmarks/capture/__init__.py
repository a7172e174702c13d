"""What capturing costs beside vLLM's own server, and what it loses."""
