"""Logs of calls to models that other programs wrote: OTLP spans, Phoenix, Langfuse, LiteLLM; read only.

Calls of one trace (or one session) that continue each other become one conversation. See `docs/formats.md`.
"""
