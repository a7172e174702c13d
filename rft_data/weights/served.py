"""A model at an endpoint as a version of a run: a folder that names it, without weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rft_data.core.errors import IntegrityError
from rft_data.core.files import read_manifest
from rft_data.core.rows import WeightRef
from rft_data.weights.versions import VersionRegistry

_FILE = "endpoint.json"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model at an endpoint."""

    base_url: str
    name: str
    """Its name at the endpoint."""

    def __str__(self) -> str:
        return self.name


def publish_served(versions: VersionRegistry, model: ServedModel) -> WeightRef:
    """Make a model at an endpoint a version of the run, as weights of no optimizer step."""

    def save(folder: Path) -> None:
        (folder / _FILE).write_text(json.dumps(asdict(model)))

    return versions.publish(0, save)


def served_model(folder: Path) -> ServedModel:
    """The model that a version's folder names. Raises: IntegrityError when it names none."""
    read_manifest(folder)
    path = folder / _FILE
    if not path.is_file():
        raise IntegrityError(
            f"{folder} holds weights and names no model at an endpoint ({_FILE}); the engine 'openai' serves "
            "none: take another engine, or another run."
        )
    return ServedModel(**json.loads(path.read_text()))
