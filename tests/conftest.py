"""Process environment for every test: set before torch, vllm or data_juicer is imported."""

import os

for key, value in {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "LANCE_LOG": "error",
}.items():
    os.environ[key] = value

from hypothesis import settings  # noqa: E402 - the environment comes first

settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
