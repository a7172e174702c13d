"""`rft doctor`: versions against ranges, and the machine."""

import json
import os
import tomllib
from contextlib import chdir
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rft_data.cli.app import app
from rft_data.core.words import Health
from rft_data.run.doctor import machine, packages
from rft_data.run.doctor.disk import disk_finding
from rft_data.run.doctor.machine import machine_findings
from rft_data.run.doctor.packages import EXTRAS, package_findings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that comes before all others."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(folder: Path, name: str, version: str, *needs: str, extras: tuple[str, ...] = ()) -> None:
    """The metadata of a package, as pip writes it."""
    said = Message()
    for key, values in (
        ("Metadata-Version", ["2.4"]), ("Name", [name]), ("Version", [version]),
        ("Requires-Dist", needs), ("Provides-Extra", extras),
    ):  # fmt: skip
        for value in values:
            said[key] = value
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(said.as_string())


@pytest.mark.slow
def test_versions_outside_the_tested_ranges_are_bad_with_the_mend(environment: Path) -> None:
    install(
        environment, "rft-data", "9.0", "alpha-x>=2,<3", "beta-x>=1", "gamma-x>=1; extra == 'ops'",
        "delta-x>=1; extra == 'train'", "epsilon-x>=1; extra == 'train'", extras=("ops", "train", "dev"),
    )  # fmt: skip
    install(environment, "alpha-x", "3.1")
    install(environment, "gamma-x", "0.9")
    install(environment, "delta-x", "1.0")
    found = {one.about: one for one in package_findings()}
    own = found["rft-data"]
    assert own.health is Health.BAD
    assert own.found == "9.0; alpha-x is 3.1 (tested: <3,>=2); beta-x is not installed (tested: >=1)"
    assert own.fix == "pip install 'alpha-x<3,>=2' 'beta-x>=1'"
    assert found["extra ops"].health is Health.BAD
    assert found["extra ops"].fix == "pip install 'rft-data[ops]'"
    assert found["extra train"].health is Health.NOTE
    assert found["extra train"].found.startswith("without epsilon-x; adds training")
    assert "extra dev" not in found


def test_every_extra_is_described() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev"}


def test_this_machine_is_described() -> None:
    found = {one.about: one for one in machine_findings()}
    assert {"cpu", "memory", "gpu", "shared memory", "ports"} <= set(found)
    assert found["torch"].found.startswith(metadata.version("torch"))
    assert found["ports"].health is Health.OK


@pytest.mark.parametrize(
    ("version", "fits"), [("0.28.0", False), ("0.28.0+cu130", False), ("0.28.0+cpu", True)]
)
def test_what_is_built_for_another_torch_is_bad(environment: Path, version: str, fits: bool) -> None:
    install(environment, "torch", "2.13.0+cpu")
    install(environment, "torchvision", version)
    found = {one.about: one for one in machine_findings()}
    assert ("torchvision" in found) is not fits
    if not fits:
        assert found["torchvision"].health is Health.BAD
        assert found["torchvision"].found == f"{version} is built for another torch than 2.13.0+cpu"
        assert "pip uninstall torchvision" in found["torchvision"].fix


def test_gpus_are_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 580.1'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert machine.gpu_lines() == ["NVIDIA H200, 143771 MiB, 580.1"]
    torch = next(one for one in machine_findings() if one.about == "torch")
    assert (torch.health, "CUDA build" in torch.fix) == (Health.NOTE, True)
    program.write_text("#!/bin/sh\nexit 9\n")
    assert machine.gpu_lines() == []


def test_a_folder_that_cannot_be_written_is_bad(tmp_path: Path) -> None:
    assert "fsync" in disk_finding(tmp_path).found
    assert list(tmp_path.iterdir()) == []
    assert disk_finding(tmp_path / "nowhere").health is Health.BAD


@pytest.mark.slow
def test_command_ends_with_3_where_a_run_would_fail(tmp_path: Path, environment: Path) -> None:
    with chdir(tmp_path):
        good = CliRunner().invoke(app, ["doctor", "--json"])
    wanted = {one["about"] for one in json.loads(good.stdout)}
    assert {"python", packages.PACKAGE, "cpu", f"disk of {tmp_path}"} <= wanted
    install(environment, "rft-data", "9.0", "beta-x>=1")
    bad = CliRunner().invoke(app, ["doctor"])
    assert bad.exit_code == 3
    assert "BAD   rft-data" in bad.stdout
    assert "-> pip install 'beta-x>=1'" in bad.stdout
