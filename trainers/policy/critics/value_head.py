"""The linear layer from a hidden state to a value; its file is not among the policy's weights."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from rft_data.core.errors import ResumeError
from trainers.ranks.sharding import whole

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

    It is trained, moved and sharded with the model that contains it, but it is in no state dict: a policy
    with a value head is saved as a plain causal language model, which loads anywhere. `save` and
    `load` handle the head.
    """

    def __init__(self, width: int) -> None:
        """`width`: H."""
        super().__init__(width, 1, dtype=torch.float32)
        # Zeros, not random: the first advantages are then plain returns, and a resumed run draws no numbers.
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Values of hidden states, outside autocast: bfloat16 has 8 bits for a sum of rewards."""
        with torch.autocast(hidden.device.type, enabled=False):
            # a copy: FSDP2 warns of results that are views
            return super().forward(hidden.float()).squeeze(-1).clone()

    def save(self, folder: Path, *, write: bool) -> None:
        """Gather the head, on every rank; with `write`, write it into `folder`, made if it is missing."""
        tensors = {name: whole(p.detach()).cpu().contiguous() for name, p in self.named_parameters()}
        if write:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / HEAD_FILE)

    def load(self, folder: Path) -> None:
        """Load the head that `save` wrote.

        Raises: ResumeError when `folder` has none.
        """
        require_head(folder)
        tensors = load_file(folder / HEAD_FILE)
        with torch.no_grad():
            for name, p in self.named_parameters():
                p.copy_(tensors[name])

    def _save_to_state_dict(self, *args: object, **kwargs: object) -> None:
        """Adds nothing: see the class."""

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        """Reads nothing: see the class."""
