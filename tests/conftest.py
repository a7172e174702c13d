"""Process environment for every test: set before torch, vllm or data_juicer is imported."""

import os

from hypothesis import settings

from rft_data.build import prepare_process

os.environ["HF_HUB_OFFLINE"] = "1"
prepare_process()
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
