"""One request to vLLM: what it is asked, and what the answer says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from explorers.engines.swap import Segments
from rft_data.core.protocols import Completion


@dataclass(slots=True)
class Flight:
    """A request in flight."""

    prompt_ids: list[int]
    parameters: Mapping[str, Any]
    """Fields of vLLM's `SamplingParams`."""
    segments: Segments
    future: asyncio.Future[Any]
    images: Sequence[str]
    """Payload ids of the images that it shows."""
    request_id: str = ""

    def completion(self, answer: Any, processor: str) -> Completion:
        """vLLM's answer; `processor`: hash of what made tensors of images."""
        output = answer.outputs[0]
        return Completion(
            token_ids=list(output.token_ids),
            logprobs=[entry[i].logprob for entry, i in zip(output.logprobs, output.token_ids, strict=True)],
            finish_reason=output.finish_reason,
            version_spans=self.segments.spans(len(output.token_ids)),
            prompt_ids=list(answer.prompt_token_ids) if self.images else None,
            processor=processor if self.images else "",
        )


def asked(
    prompt_ids: Sequence[int], parameters: Mapping[str, Any], salt: str, shown: Mapping[str, Any]
) -> tuple[Any, Any]:
    """vLLM's prompt and sampling parameters; `shown`: fields of the prompt for images."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    prompt = TokensPrompt(prompt_token_ids=list(prompt_ids), cache_salt=salt, **shown)
    return prompt, SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY, **parameters)
