"""Engines: token ids in, token ids and logprobs out, under a proven policy version."""
