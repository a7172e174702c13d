"""Programs that speak to an OpenAI server become rollouts: their requests are recorded at the engine."""
