"""Process environment for every test: set before torch, vllm or data_juicer is imported."""

import os

from hypothesis import settings

from rft_data.run.build import prepare_process

os.environ["HF_HUB_OFFLINE"] = "1"
prepare_process()
# The same examples every time; `pytest --hypothesis-profile random` looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile("same")
