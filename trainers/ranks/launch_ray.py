"""Ray Train as the launcher of a data-parallel trainer: its workers are the ranks.

It is for programs that bring their own batches (from a hub, from files). A run of a recipe starts its ranks
itself, also with placement 'ray'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from rft_data.core.lookup import load, need


class _Work(TypedDict):
    """What each worker is given."""

    work: str
    trainer: dict[str, object]
    deadline_s: float


def train_on_ray(
    work: str,
    trainer: Mapping[str, object],
    *,
    workers: int,
    storage: str,
    gpus: bool = False,
    deadline_s: float = 3600.0,
) -> None:
    """Make one trainer of `workers` processes of the cluster, call `work` with it, and wait for its end.

    Args:
        work: `package.module:function`, called in rank 0 as function(trainer: GrpoTrainer).
        trainer: a GrpoPlan as JSON (`GrpoPlan.from_json`); its paths must lead to the same files on every
            node.
        storage: folder, or URL, where Ray Train keeps its own records.
        gpus: whether each worker gets a GPU.
        deadline_s: longest wait of the ranks for each other.
    Raises: MissingExtraError without Ray; what Ray raises when a worker fails.
    """
    torch_trainers = need("ray.train.torch", "ray", "training on Ray Train")
    train = need("ray.train", "ray", "training on Ray Train")
    torch_trainers.TorchTrainer(
        _worker,
        train_loop_config={"work": work, "trainer": dict(trainer), "deadline_s": deadline_s},
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=train.RunConfig(storage_path=storage),
        torch_config=torch_trainers.TorchConfig(backend=None if gpus else "gloo", timeout_s=int(deadline_s)),
    ).fit()


def _worker(given: _Work) -> None:
    """One rank; Ray has made torch's default group."""
    from trainers.ranks.follower import serve
    from trainers.ranks.launch import ask_to_end
    from trainers.ranks.ranks import Ranks
    from trainers.role import lead_trainer

    ranks = Ranks.join(given["deadline_s"])
    if ranks.rank:
        serve(ranks)
        return
    trainer = lead_trainer(given["trainer"], ranks)
    try:
        load(given["work"], "work")(trainer)
        trainer.close()
    finally:
        if ranks.sound:
            ask_to_end(ranks)
