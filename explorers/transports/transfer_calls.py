"""vLLM's weight-transfer calls as one call of the worker, and its messages as JSON.

IPC handles are sent as numbers, bytes and the names of a few types; there is no pickle.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from explorers.transports.arrival import Source
from rft_data.core.errors import IntegrityError

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_worker import Worker

T = TypeVar("T")

_TYPES = ("Tensor", "UntypedStorage", "nn.Parameter")


def receive(worker: Worker, source: Source) -> None:
    """Join the sender's group if need be, and run a whole weight update: start, receive, finish.

    Between start and finish vLLM's layers are on the meta device, so nothing may be stepped in between.
    """
    if getattr(worker, "rft_group", None) != source["generation"]:
        worker.init_weight_transfer_engine(source["init"])
        worker.rft_group = source["generation"]
    worker.start_weight_update()
    worker.update_weights(decode(source["update"]))
    worker.finish_weight_update()


def encode(value: object) -> object:
    """A value of an update as JSON; everything that is not JSON becomes a one-key object."""
    import torch

    if isinstance(value, torch.Size):
        return {"!size": list(value)}
    if isinstance(value, torch.dtype):
        return {"!dtype": str(value).removeprefix("torch.")}
    if isinstance(value, bytes):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, type):
        return {"!type": _type_name(value)}
    if isinstance(value, tuple):
        return {"!tuple": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(value: object) -> object:
    """Inverse of `encode`."""
    import torch

    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if len(value) == 1:
        (tag, content), *_ = value.items()
        if tag == "!size":
            return torch.Size(content)
        if tag == "!dtype":
            return _known(getattr(torch, content, None), torch.dtype, content)
        if tag == "!bytes":
            return base64.b64decode(content)
        if tag == "!type":
            return _known(_type_called(content), type, content)
        if tag == "!tuple":
            return tuple(decode(item) for item in content)
    return {key: decode(item) for key, item in value.items()}


def _type_name(kind: type) -> str:
    found = [name for name in _TYPES if _type_called(name) is kind]
    return _known(found[0] if found else None, str, kind)


def _type_called(name: str) -> object:
    import torch

    known = {
        "Tensor": torch.Tensor,
        "UntypedStorage": torch.UntypedStorage,
        "nn.Parameter": torch.nn.Parameter,
    }
    return known.get(name)


def _known(value: object, kind: type[T], what: object) -> T:
    if not isinstance(value, kind):
        raise IntegrityError(
            f"a weight update names {what!r}; wanted only types that CUDA IPC handles have: check the sender."
        )
    return value
