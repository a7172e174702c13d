"""Agreement of authors, against scikit-learn and against the definition pair by pair in float64."""

import itertools
import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from sklearn.metrics import cohen_kappa_score

from rft_data.exchange.agreement import agreements, cohen_kappa, krippendorff_alpha
from rft_data.exchange.standing import Word

_BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
PUBLISHED = (  # four observers, twelve units: nominal 0.743, interval 0.849 (Krippendorff 2011)
    (1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None),
    (1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3),
    (None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None),
    (1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None),
)


def by_pairs(units: list[dict[str, float]], *, interval: bool) -> float:
    """Alpha as it is defined: distances of all pairs within units, over those of all pairs of answers."""

    def distance(a: float, b: float) -> float:
        return (a - b) ** 2 if interval else float(a != b)

    shared = [list(unit.values()) for unit in units if len(unit) > 1]
    every = [value for unit in shared for value in unit]
    within = sum(
        distance(a, b) / (len(unit) - 1) for unit in shared for a, b in itertools.permutations(unit, 2)
    )
    total = sum(distance(a, b) for a, b in itertools.permutations(every, 2))
    return 1 - (within / len(every)) / (total / (len(every) * (len(every) - 1)))


@pytest.mark.parametrize("seed", range(5))
def test_kappa_is_that_of_scikit_learn(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - of a test
    first = [rng.choice([0.0, 1.0, 2.0]) for _ in range(40)]
    second = [value if rng.random() < 0.6 else rng.choice([0.0, 1.0, 2.0]) for value in first]
    found = cohen_kappa(first, second)
    assert found == pytest.approx(cohen_kappa_score([int(a) for a in first], [int(b) for b in second]))
    assert 0.1 < (found or 0) < 0.9
    assert cohen_kappa([1.0, 1.0], [1.0, 1.0]) is None


@pytest.mark.parametrize("interval", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_alpha_is_its_definition_with_answers_missing(seed: int, interval: bool) -> None:
    rng = random.Random(seed)  # noqa: S311 - of a test
    units = [{author: float(rng.randrange(4)) for author in "abcd" if rng.random() < 0.7} for _ in range(30)]
    found = krippendorff_alpha(units, interval=interval)
    assert found == pytest.approx(by_pairs(units, interval=interval), abs=1e-12)


def test_alpha_of_the_published_example() -> None:
    units = [
        {str(who): float(value) for who, value in enumerate(column) if value is not None}
        for column in zip(*PUBLISHED, strict=True)
    ]
    assert krippendorff_alpha(units, interval=False) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(units, interval=True) == pytest.approx(0.849, abs=5e-4)
    assert krippendorff_alpha([{"a": 1.0, "b": 1.0}], interval=False) is None


def word(
    who: str, row: str, key: str, value: float, text: str = "", *, at: int = 0, back: bool = False
) -> Word:
    time = _BEGAN + timedelta(seconds=at)
    return Word("", row, who, key, value, text, time, time if back else None)


def test_the_newest_word_that_stands_counts() -> None:
    said = [
        word("ann", "x", "thumb", 0.0),
        word("ann", "x", "thumb", 1.0, at=1),
        word("bob", "x", "thumb", 1.0),
        word("ann", "y", "thumb", 0.0),
        word("bob", "y", "thumb", 1.0, at=1),
        word("bob", "z", "thumb", 1.0),
        word("ann", "z", "thumb", 0.0, back=True),
    ]
    [found] = agreements(said)
    assert (found.key, found.authors, found.units, found.same) == ("thumb", ("ann", "bob"), 2, 0.5)
    assert found.measure == "Cohen's kappa"
    more = agreements([*said, word("eve", "y", "thumb", 1.0)])
    assert more[0].measure == "Krippendorff's alpha"
    assert more[0].value is not None
    assert math.isfinite(more[0].value)


def test_a_choice_between_two_is_one_unit_whoever_is_named_first() -> None:
    said = [
        word("ann", "x", "preferred", 1.0, "y"),
        word("bob", "y", "preferred", 1.0, "x rft:again 1"),
        word("ann", "v", "preferred", 1.0, "w"),
        word("bob", "v", "preferred", 1.0, "w"),
    ]
    [found] = agreements(said)
    assert (found.units, found.same) == (2, 0.5)
    assert found.value == pytest.approx(cohen_kappa_score([0, 0], [1, 0]))
