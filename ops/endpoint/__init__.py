"""OpenAI-compatible endpoints over HTTP: calls, limits, failures. Judges and the engine `openai` use them."""
