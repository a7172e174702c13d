"""A vllm engine in a process of its own that loads what a sender offers; run by test_transports."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from explorers.engines.vllm_engine import VllmEngine
from rft_data.core.engine import Sampling
from rft_data.core.rows import WeightRef


def main() -> None:
    """Load each version, play one prompt on it, and tell the logprobs as JSON lines."""
    order = json.loads(sys.stdin.read())
    engine = VllmEngine(
        Path(order["model"]), seed=0, max_model_len=128, options={}, transport=order["transport"]
    )
    for fields in order["refs"]:
        difference = asyncio.run(engine.swap_weights(WeightRef(**fields)))
        completion = asyncio.run(engine.generate(order["prompt"], Sampling(12)))
        told = {
            "version": engine.version,
            "difference": difference,
            "token_ids": list(completion.token_ids),
            "logprobs": list(completion.logprobs),
        }
        sys.stdout.write(json.dumps(told) + "\n")
    engine.close()


main()
