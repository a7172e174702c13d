"""Rows and buffers for the hub's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.core.rows import Experience, TaskKey, experience_id_of
from tests.object_store import bucket, store_server, way  # noqa: F401
from tests.rft_data.run.stored_runs import node, url  # noqa: F401


def make_experience(number: int = 0, **changes: object) -> Experience:
    """A small valid rollout; `number` makes its id."""
    task = TaskKey("arith", "t0")
    fields = {
        "experience_id": experience_id_of("run", task, 0, "run/g0", number),
        "source": "rollout",
        "run_id": "run",
        "taskset": task.taskset,
        "task_id": task.task_id,
        "group_id": "run/g0",
        "member": number,
        "token_ids": [5, 6, 7, 8],
        "prompt_length": 2,
        "action_mask": [0, 0, 1, 1],
        "logprobs": [0.0, 0.0, -0.25, -1.5],
        "version_min": 3,
        "version_max": 3,
        "version_spans": ((3, 2, 4),),
        "messages": ({"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}),
        "completion_text": "2",
        "finish_reason": "stop",
        "reward": 1.0,
        "reward_parts": {"exact": 1.0},
        "sampling": {"temperature": 1.0},
    }
    return Experience(**{**fields, **changes})


@pytest.fixture
def buffer(tmp_path: Path, request: pytest.FixtureRequest):
    """An empty buffer: in a folder, or with the parameter `store` on an object store (see `EVERYWHERE`)."""
    stored = getattr(request, "param", "folder") == "store"
    where = f"{request.getfixturevalue('bucket')}/buffer" if stored else tmp_path / "buffer"
    with Buffer(where) as opened:
        yield opened


EVERYWHERE = pytest.mark.parametrize("buffer", ["folder", "store"], indirect=True)
"""For tests of which a folder and an object store make no difference."""


@pytest.fixture
def wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that W&B writes its runs into, without a network."""
    import wandb

    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield tmp_path / "wandb"
    wandb.teardown()  # it reads its environment once
