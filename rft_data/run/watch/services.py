"""Work that transformers' callbacks leave open for four trackers: resuming a run, tables, the end of a run.

The id of a tracker's run is kept in the folder of ours, so that a resumed run goes on in the same one. A
variable that names the tracker's run (`WANDB_RUN_ID`, ...) comes first.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rft_data.core.files import make_folder, write_text
from rft_data.run.watch.samples import COLUMNS, Sample, table_rows

_ID_FILE = "run_id"
_TABLE = "completions"
"""The table's name; TRL's."""


class Service(Protocol):
    """One tracker's own package; what its callback does is not repeated here."""

    def begin(self, name: str, folder: Path) -> str:
        """Begin the tracker's run, or go on in the one that `folder` names; returns the name to show."""
        ...

    def show(self, samples: Sequence[Sample], step: int) -> None:
        """Show a table."""
        ...

    def finish(self) -> None:
        """End the tracker's run: the next one of this process is another."""
        ...


class Wandb:
    """Weights & Biases."""

    def begin(self, name: str, folder: Path) -> str:
        import wandb

        run_id = os.environ.get("WANDB_RUN_ID") or _kept_id(folder)
        project = os.environ.get("WANDB_PROJECT", "huggingface")  # the callback's default
        wandb.init(project=project, name=name, id=run_id, resume="allow")
        return name

    def show(self, samples: Sequence[Sample], step: int) -> None:
        import wandb

        table = wandb.Table(columns=list(COLUMNS), data=table_rows(samples))
        wandb.log({_TABLE: table}, commit=False)  # with the step's numbers

    def finish(self) -> None:
        import wandb

        wandb.finish()


class Trackio:
    """Trackio, which finds runs by name: an id in the name keeps a later run of the same name apart."""

    def begin(self, name: str, folder: Path) -> str:
        return f"{name}-{_kept_id(folder)}"

    def show(self, samples: Sequence[Sample], step: int) -> None:
        import pandas as pd
        import trackio

        table = trackio.Table(dataframe=pd.DataFrame(table_rows(samples), columns=list(COLUMNS)))
        trackio.log({_TABLE: table, "train/global_step": step})

    def finish(self) -> None:
        """The callback ended it."""


class Mlflow:
    """MLflow, which gives the id itself."""

    def begin(self, name: str, folder: Path) -> str:
        import mlflow

        if not os.environ.get("MLFLOW_RUN_ID"):
            kept = folder / _ID_FILE
            known = kept.read_text() if kept.is_file() else None
            if known is None and (experiment := os.environ.get("MLFLOW_EXPERIMENT_NAME")):
                mlflow.set_experiment(experiment)
            run = mlflow.start_run(run_id=known, run_name=name)
            make_folder(folder)
            write_text(kept, run.info.run_id)
        return name

    def show(self, samples: Sequence[Sample], step: int) -> None:
        import mlflow

        columns = dict(zip(COLUMNS, map(list, zip(*table_rows(samples), strict=True)), strict=True))
        mlflow.log_table(columns, f"{_TABLE}/step-{step:08}.json")  # one that grows is read again each time

    def finish(self) -> None:
        import mlflow

        mlflow.end_run()


class Swanlab:
    def begin(self, name: str, folder: Path) -> str:
        import swanlab

        run_id = os.environ.get("SWANLAB_RUN_ID") or _kept_id(folder)
        swanlab.init(project=os.environ.get("SWANLAB_PROJECT"), name=name, id=run_id, resume="allow")
        return name

    def show(self, samples: Sequence[Sample], step: int) -> None:
        import swanlab

        rows = [[str(value) for value in row] for row in table_rows(samples)]
        swanlab.log({_TABLE: swanlab.echarts.Table().add(list(COLUMNS), rows)}, step=step)

    def finish(self) -> None:
        import swanlab

        swanlab.finish()


SERVICES: Mapping[str, type[Service]] = {
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
    "swanlab": Swanlab,
}


def _kept_id(folder: Path) -> str:
    """The id of the tracker's run, made at the first start."""
    kept = folder / _ID_FILE
    if not kept.is_file():
        make_folder(folder)
        write_text(kept, uuid.uuid4().hex[:21])  # SwanLab's length
    return kept.read_text()
