"""A person with a fresh clone, the README and docs/walks.md: their commands as they stand, as real processes.

It takes minutes and installs everything: `make new-user`. The suite does the same in seconds, in one process:
tests/docs/test_walks.py, tests/docs/test_own_page.py, tests/rft_data/run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from tests.docs.blocks import ROOT, blocks
from tests.docs.test_walks import FILES, MISTAKES, with_mistakes
from tests.outside import persons_environment
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("RFT_TEST_NEW_USER"),
        reason="a clone and its quickstart take minutes: set RFT_TEST_NEW_USER=1, or `make new-user`",
    ),
]


@dataclass
class Person:
    """Types commands, and remembers how long each took."""

    clone: Path
    took: list[tuple[str, int, float]] = field(default_factory=list)
    """What was done, in how many commands, and seconds."""

    def environment(self) -> dict[str, str]:
        """No checkout but the clone, and its commands first."""
        env = persons_environment()
        return {**env, "PATH": f"{self.clone / '.venv' / 'bin'}:{env['PATH']}"}

    def types(self, what: str, body: str, folder: Path, keys: str = "") -> str:
        """What a block of commands prints; each of them must end well."""
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", body],
            cwd=folder,
            env=self.environment(),
            input=keys,
            capture_output=True,
            text=True,
        )
        commands = len([line for line in body.splitlines() if line.strip()])
        self.took.append((what, commands, time.monotonic() - begun))
        assert done.returncode == 0, f"{what}: {body}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    """Somebody with a clone; at the end the table of what was done is printed."""
    place = Path(os.environ.get("RFT_NEW_USER_FOLDER") or tmp_path_factory.mktemp("new-user"))
    subprocess.run(["git", "clone", "--quiet", ROOT, place / "clone"], check=True)
    someone = Person(place / "clone")
    yield someone
    lines = [f"| {what} | {n} | {seconds:.0f} s |" for what, n, seconds in someone.took]
    sys.stdout.write("\n".join(["", "| what | commands | took |", "|---|---|---|", *lines, ""]))


def console(page: str) -> list[str]:
    """The blocks of commands of a page."""
    return [one.body for one in blocks(ROOT / page) if one.language == "console"]


def test_the_quickstart_learns(person: Person) -> None:
    (two,) = (body for body in console("README.md") if body.startswith("make quickstart"))
    (setup,) = (body for body in console("README.md") if body.startswith("make setup"))
    person.types("`make setup`", setup.splitlines()[0], person.clone)
    person.types("`make quickstart`", two.splitlines()[0], person.clone)
    summary = json.loads((person.clone / "runs" / "quickstart" / "summary.json").read_text())
    *_, imitating, rewarded = summary["heldout_accuracy"].values()
    assert rewarded > imitating + 0.3
    (looking,) = (body for body in console("README.md") if "runs/quickstart/buffer\n" in body)
    person.types("a look at its buffer", "\n".join(looking.splitlines()[:2]), person.clone)


def test_a_project_of_ones_own(person: Person) -> None:
    (block,) = (body for body in console("README.md") if "rft init my-project" in body)
    person.types("a project by `rft init`, to its run", block, person.clone)
    assert (person.clone / "my-project" / "runs" / "my-project" / "summary.json").is_file()


@pytest.fixture(scope="module")
def folder(person: Person) -> Path:
    """The files of docs/walks.md, saved in one folder."""
    made = person.clone.parent / "walks"
    made.mkdir()
    for name, text in FILES.items():
        (made / name).write_text(text)
    return made


def test_the_walks(person: Person, folder: Path) -> None:
    first, second, third = (body for body in console("docs/walks.md") if "rft resume" not in body)
    person.types("questions, imitation, then reinforcement", first, folder)
    before, asked, after = re.split(r"^(rft data annotate.*\n)", second, flags=re.M)
    person.types("chat logs: import", before, folder)
    person.types("chat logs: three choices", asked, folder, keys="aba")
    person.types("chat logs: export, imitation, then preferences", after, folder)
    person.types("a folder of `datasets`", "python save.py", folder)
    person.types("a dataset's folder, measured", third, folder)
    measured = json.loads((folder / "runs" / "measure" / "summary.json").read_text())
    assert measured["tasks"]["heldout"] == 3


def test_killed_and_resumed(person: Person, folder: Path) -> None:
    own = ["name=killed", "run_dir=runs/killed", "buffer.uri=runs/killed/buffer", "stages.1.steps=30"]
    run = subprocess.Popen(
        ["rft", "run", "shop.yaml", *own], cwd=folder, env=person.environment(), stderr=subprocess.DEVNULL
    )
    wait_for(lambda: list((folder / "runs" / "killed").rglob("checkpoints/*/manifest.json")))
    run.send_signal(signal.SIGKILL)
    run.wait()
    person.types("`rft resume` after a kill", "rft resume runs/killed", folder)
    person.types("its accounts", "rft buffer books runs/killed/buffer", folder)
    with Buffer(folder / "runs" / "killed" / "buffer", read_only=True) as buffer:
        grants = [
            row for row in buffer.read("leases", ["kind", "step"]).to_pylist() if row["kind"] == "grant"
        ]
    assert {row["step"] for row in grants} == set(range(30))


def test_a_deployed_model_comes_to_please_its_users(person: Person) -> None:
    """The commands of recipes/served_cpu.yaml; its users like answers that show their working."""
    person.types("what it begins with: `sums_grpo`", "rft run recipes/sums_grpo.yaml", person.clone)
    both = (
        "export RFT_SERVE_TOKEN=a-random-text-of-a-person\n"
        "rft run recipes/served_cpu.yaml & python recipes/sums_users.py --port 8009; wait $!"
    )
    told = person.types("a served run and its users", both, person.clone)
    liked = [float(share) for share in re.findall(r"([\d.]+) % liked", told)]
    assert "visits that failed: none" in told
    assert liked[-1] > liked[0] + 10, told


def test_ten_mistakes(person: Person, folder: Path) -> None:
    (folder / "wrong.yaml").write_text(with_mistakes())
    told = person.types("ten mistakes", "! rft recipe validate wrong.yaml 2>&1", folder)
    assert [said for _, said in MISTAKES.values() if not re.search(said, told)] == []
