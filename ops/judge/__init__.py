"""A language model as a judge: prompts, calls, cache, scores."""
