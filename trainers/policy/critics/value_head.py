"""The linear layer that makes one value of each hidden state; on disk it is not with the policy's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from rft_data.core.errors import ResumeError

HEAD_FILE = "value_head.safetensors"


def require_head(folder: Path) -> None:
    """Check that a critic was written into `folder`.

    Raises: ResumeError when none was.
    """
    if not (folder / HEAD_FILE).is_file():
        raise ResumeError(
            f"'{folder}' has no {HEAD_FILE}: the checkpoint was written without a critic. Resume with the "
            "'critic' of the run that wrote it, or start anew."
        )


class ValueHead(torch.nn.Linear):
    """Hidden states (..., H) to values (...), float32, in units of reward; all 0 before training.

    It trains, moves and is sharded with the model it is a part of, but is in no state dict: a policy with
    a value head saves as the plain causal language model it was, so what is published loads anywhere.
    `save` and `load` are its own.
    """

    def __init__(self, width: int) -> None:
        """`width`: H."""
        super().__init__(width, 1, dtype=torch.float32)
        # Not random: the first advantages are then plain returns, and a resumed run draws nothing.
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values of hidden states, outside autocast: bfloat16 has 8 bits for a sum of rewards."""
        with torch.autocast(hidden.device.type, enabled=False):
            return super().forward(hidden.float()).squeeze(-1)

    def save(self, folder: Path, *, write: bool) -> None:
        """Gather the head, on every rank, and where `write` write it into a folder, made if need be."""
        tensors = {name: _whole(p.detach()).cpu().contiguous() for name, p in self.named_parameters()}
        if write:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / HEAD_FILE)

    def load(self, folder: Path) -> None:
        """Take the head that `save` wrote.

        Raises: ResumeError when it is not there.
        """
        require_head(folder)
        tensors = load_file(folder / HEAD_FILE)
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(tensors[name])

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Nothing."""


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which FSDP2 gave this rank a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
