"""The mutation gate itself: what it changes, whom it calls killed, and that its lists name what exists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.mutants.__main__ import EQUIVALENTS, ROOT, mutants_of, sample
from benchmarks.mutants.edits import mutants
from benchmarks.mutants.gate import Gate, UnsoundError
from benchmarks.mutants.parts import ROWS, Target, targets
from benchmarks.mutants.records import Equivalents, Verdicts
from benchmarks.mutants.sandbox import Sandbox

TOY = '''"""Toy."""
def clamp(value: int, low: int) -> int:
    """The larger."""
    if value < low:
        return low
    return value + 0 * low
'''
TEST = """
from toy import clamp

def test_clamp():
    assert clamp(1, 3) == 3
    assert clamp(5, 3) == 5
"""
TARGET = Target("toy.py", "toy", ("test_toy.py",))


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    root.mkdir()
    (root / "toy.py").write_text(TOY)
    (root / "test_toy.py").write_text(TEST)
    return root


def a_gate(root: Path, folder: Path) -> Gate:
    folder.mkdir()
    return Gate(Sandbox(root, folder), Verdicts(root / ".mutants" / "verdicts.jsonl", root))


def changes(source: str) -> list[str]:
    return [mutant.change for mutant in mutants("m.py", source.encode())]


@pytest.mark.slow
def test_one_is_killed_one_survives_and_one_is_equivalent(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "equivalents.jsonl").write_text(
        json.dumps(
            {
                "module": "toy.py",
                "function": "clamp",
                "line": "if value < low:",
                "changes": ["value < low -> value <= low"],
                "why": "both are returned where they are equal",
            }
        )
    )
    equivalents = Equivalents(tmp_path / "equivalents.jsonl")
    found = mutants_of(TARGET, toy)
    assert [mutant.change for mutant in found if mutant in equivalents] == ["value < low -> value <= low"]
    assert equivalents.gone(found) == []
    tried = [
        m
        for m in found
        if m not in equivalents and m.change in ("value + 0 * low -> value - 0 * low", "0 -> 1")
    ]
    gate = a_gate(toy, tmp_path / "first")
    gate.try_all([(TARGET, mutant) for mutant in tried])
    bars, figures = gate.result()
    assert [(bar.name, bar.value, bar.holds) for bar in bars] == [("mutants_killed", 0.5, False)]
    assert figures["parts"] == {"toy": {"killed": 1, "survived": 1, "share": 0.5}}
    kept = [json.loads(line) for line in (toy / ".mutants" / "verdicts.jsonl").read_text().splitlines()]
    assert [(row["outcome"], row["killer"]) for row in kept] == [
        ("survived", ""),
        ("killed", "test_toy.py::test_clamp"),
    ]
    assert (toy / "toy.py").read_text() == TOY

    again = a_gate(toy, tmp_path / "again")
    again.try_all([(TARGET, mutant) for mutant in tried])
    assert again.result()[1] == {**figures, "cpu_s": 0}, "known verdicts were tried again"
    (toy / "test_toy.py").write_text(TEST.replace("== 5", "== 6"))
    broken = a_gate(toy, tmp_path / "broken")
    with pytest.raises(UnsoundError, match="test_clamp fails without any mutant"):
        broken.try_all([(TARGET, mutant) for mutant in tried])


def test_a_record_is_gone_when_its_line_is(tmp_path: Path) -> None:
    row = {"module": "m.py", "function": "", "line": "a = 1", "changes": ["1 -> 2"], "why": "unused"}
    (tmp_path / "e.jsonl").write_text(json.dumps(row) + "\n")
    equivalents = Equivalents(tmp_path / "e.jsonl")
    assert equivalents.gone(mutants("m.py", b"b = 3\n\na = 1\n")) == []
    assert equivalents.gone(mutants("m.py", b"a = 10\n")) == [("m.py", "", "a = 1", "1 -> 2")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b <= c", ["a < b <= c -> a <= b <= c", "a < b <= c -> a < b < c"]),
        ("x = y == 2.5", ["y == 2.5 -> y != 2.5", "2.5 -> 1.5", "2.5 -> 3.5"]),
        ("x = a * b + c", ["a * b -> a / b", "a * b + c -> a * b - c"]),
        ("x += 'text'", []),
        ("x = not a and b", ["not a -> a", "not a and b -> not a or b"]),
        ("def f(x: int | None = True, y: float = 0.5): pass", ["True -> False", "0.5 -> -0.5", "0.5 -> 1.5"]),
        ("os.fsync(x)", ["call -> pass"]),
        ("async def f():\n    await task.cancel()", ["call -> pass"]),
        ("log.warning('%s', 1)", []),
        ("raise A('b')", ["raise -> pass"]),
        ("while ready(x): break", ["ready(x) -> not ready(x)", "break -> continue"]),
        ("x = max(a, np.floor(b))", ["max -> min", "np.floor -> np.ceil"]),
        ("x = f'{a + 1}'", []),
        ("@dataclass(frozen=True)\nclass A(B): c: int = min(0)", ["min -> max", "0 -> -1", "0 -> 1"]),
        ("x = zip(a, b, strict=True)", []),
        (
            "x = a + 1 + 1",
            ["a + 1 -> a - 1", "a + 1 + 1 -> a + 1 - 1", "1 -> 0", "1 -> 2", "1 -> 0 #2", "1 -> 2 #2"],
        ),
    ],
)
def test_what_is_changed(source: str, expected: list[str]) -> None:
    assert sorted(changes(source)) == sorted(expected)


def test_an_edit_keeps_the_rest_of_the_text() -> None:
    source = "é = '…'; y = 1 < (2\n    + z)\n".encode()
    texts = {mutant.change: mutant.applied(source).decode() for mutant in mutants("m.py", source)}
    assert texts["1 < 2 + z -> 1 <= 2 + z"] == "é = '…'; y = (1 <= 2 + z)\n"
    assert texts["2 + z -> 2 - z"] == "é = '…'; y = 1 < ((2 - z))\n"


def test_a_sample_is_the_same_for_a_seed() -> None:
    pairs = [(TARGET, mutant) for mutant in mutants("m.py", b"x = 1 + 2 + 3 + 4 + 5")]
    assert sample(pairs, 4, 7) == sample(pairs, 4, 7) != sample(pairs, 4, 8)
    assert len(sample(pairs, 100, 7)) == len(pairs)


@pytest.mark.slow
def test_every_row_names_modules_and_every_module_has_tests() -> None:
    assert [pattern for _, pattern, _ in ROWS if not list(ROOT.glob(pattern))] == []
    every = [target for target in targets(ROOT) if mutants_of(target, ROOT)]
    lacking = [
        (target.module, test) for target in every for test in target.tests if not (ROOT / test).exists()
    ]
    assert lacking == []
    assert {target.part for target in every} == {
        "selectors", "sampler", "ledger", "conservation", "buffer", "digests", "versions", "explorers", "ops",
        "losses", "critics",
    }  # fmt: skip


@pytest.mark.slow
def test_equivalent_mutants_are_of_this_code_and_say_why() -> None:
    found = [mutant for target in targets(ROOT) for mutant in mutants_of(target, ROOT)]
    assert Equivalents(EQUIVALENTS).gone(found) == []
    rows = [json.loads(line) for line in EQUIVALENTS.read_text().splitlines()]
    assert [row["line"] for row in rows if len(row["why"]) < 20] == []
