"""Cost of capturing beside vLLM's own server, and its losses."""
