"""The update that every contender makes: a model of random weights and eight rows of 256 tokens.

`write_case` writes both into a folder, with the model's own logprobs of the rows, so that the policy that
sampled is the policy at the start. It times nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from rft_data.core.schema import EXPERIENCES

GROUPS, GROUP = 2, 4
PROMPT_TOKENS, COMPLETION_TOKENS = 64, 192
ROWS, TOKENS = GROUPS * GROUP, PROMPT_TOKENS + COMPLETION_TOKENS
LEARNING_RATE = 1e-6
SEED = 0


@dataclass(frozen=True, slots=True)
class Size:
    """A Qwen2 by its shape; without a shape, the quickstart's."""

    name: str
    steps: int
    """Timed optimizer steps of a round; one more warms up."""
    rounds: int
    """Every contender has its turn in each, in a process of its own."""
    sft_rows: int = 0
    """Ragged rows of the packing part; 0: not measured at this size."""
    shape: Mapping[str, int] | None = None

    def build(self, folder: Path) -> None:
        """Write the model and the tiny tokenizer into `folder`."""
        from trainers.models.tiny_model import build_tiny_model

        if self.shape is None:
            build_tiny_model(folder, seed=SEED)
            return
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        from trainers.models.tiny_model import build_tiny_tokenizer

        tokenizer = build_tiny_tokenizer()
        torch.manual_seed(SEED)
        special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        config = Qwen2Config(**self.shape, **special, bos_token_id=None, tie_word_embeddings=True)
        Qwen2ForCausalLM(config).float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)


_100M = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12}
_500M = {"hidden_size": 1024, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 4}
_READS = {"vocab_size": 32_000, "max_position_embeddings": 512}
SIZES = {
    "tiny": Size("tiny", steps=60, rounds=3, sft_rows=1024),
    "100m": Size(
        "100m", steps=4, rounds=3, sft_rows=64, shape={**_100M, **_READS, "intermediate_size": 2048}
    ),
    "500m": Size("500m", steps=2, rounds=3, shape={**_500M, **_READS, "intermediate_size": 4864}),
}
"""110 and 508 million parameters; the quickstart's has 0.7 million."""


@dataclass(frozen=True, slots=True)
class Case:
    """A folder that `write_case` has filled."""

    folder: Path

    @property
    def model(self) -> Path:
        """Its folder."""
        return self.folder / "model"

    def table(self) -> pa.Table:
        """The rows as the trainer reads them: EXPERIENCES columns and `advantage`."""
        with pa.OSFile(str(self.folder / "rows.arrow")) as file:
            return pa.ipc.open_file(file).read_all()

    def facts(self) -> dict[str, Any]:
        """`parameters` of the model."""
        found: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return found


def write_case(size: Size, folder: Path) -> Case:
    """Build the model, and the rows with its logprobs (nats, temperature 1) as those of the rollout."""
    import torch

    from trainers.models.weights import load_model, load_tokenizer

    case = Case(folder)
    size.build(case.model)
    model, tokenizer = load_model(case.model), load_tokenizer(case.model)
    rng = np.random.default_rng(SEED)
    prompts = np.repeat(rng.integers(5, len(tokenizer), (GROUPS, PROMPT_TOKENS)), GROUP, axis=0)
    ids = np.concatenate([prompts, rng.integers(5, len(tokenizer), (ROWS, COMPLETION_TOKENS))], axis=1)
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(ids), use_cache=False).logits[:, :-1]
        scored = torch.log_softmax(logits, -1).gather(2, torch.from_numpy(ids)[:, 1:, None])[..., 0]
    logprobs = np.concatenate([np.zeros((ROWS, 1)), scored.numpy()], axis=1)
    rewards = rng.random((GROUPS, GROUP))
    # arXiv:2402.03300 with TRL's 1e-4 under the division
    advantages = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    mask = (np.arange(TOKENS) >= PROMPT_TOKENS).astype(int).tolist()
    table = experiences(
        {
            "seq": row,
            "group_id": f"group-{row // GROUP}",
            "prompt_length": PROMPT_TOKENS,
            "token_ids": ids[row].tolist(),
            "action_mask": mask,
            "logprobs": logprobs[row].tolist(),
            "reward": rewards.flat[row],
            "version_min": 0,
        }
        for row in range(ROWS)
    )
    advantage = pa.array(advantages.reshape(-1, 1).tolist(), pa.list_(pa.float32()))
    table = table.append_column("advantage", advantage)
    with pa.OSFile(str(folder / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table)
    (folder / "facts.json").write_text(json.dumps({"parameters": model.num_parameters()}))
    return case


def experiences(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows of EXPERIENCES, null where nothing is given."""
    return pa.Table.from_pylist(list(rows), schema=EXPERIENCES)
