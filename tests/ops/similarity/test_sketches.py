"""MinHash sketches estimate Jaccard similarities; the index finds what comparing all pairs finds."""

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from ops.similarity.shingles import Shingles, mixed, shingles
from ops.similarity.sketches import SIZE, SketchIndex, band_shape, sketches


def hashed(sets):
    """Sets of small numbers as Shingles."""
    counts = np.array([len(one) for one in sets], np.int64)
    flat = np.array([value for one in sets for value in one], np.uint64)
    return Shingles(mixed(flat + np.uint64(1)), counts)


def pairs_of(jaccard, size, count):
    """`count` pairs of sets of about `size` elements with this Jaccard similarity."""
    shared = round(2 * size * jaccard / (1 + jaccard))
    made = []
    for number in range(count):
        first = 10_000 * number
        common = list(range(first, first + shared))
        made.append(
            (
                common + [first + 5_000 + i for i in range(size - shared)],
                common + [first + 7_500 + i for i in range(size - shared)],
            )
        )
    exact = shared / (2 * size - shared)
    return made, exact


@pytest.mark.parametrize("size", [12, 60, 400])
@pytest.mark.parametrize("jaccard", [0.3, 0.8])
def test_estimate_is_unbiased(size, jaccard):
    pairs, exact = pairs_of(jaccard, size, 400)
    left, right = (sketches(hashed(side)) for side in zip(*pairs, strict=True))
    estimates = (left == right).mean(axis=1)
    # a small set has fewer independent numbers than SIZE
    error = np.sqrt(exact * (1 - exact) / min(SIZE, size))
    assert abs(estimates.mean() - exact) < 4 * error / np.sqrt(len(pairs)) + 0.002
    assert estimates.std() < 1.5 * error


def test_sketch_does_not_depend_on_order_repeats_or_neighbours():
    one = [5, 9, 700, 31]
    alone = sketches(hashed([one]))[0]
    among = sketches(hashed([[1, 2], one[::-1] + one, [], list(range(300))]))
    assert np.array_equal(alone, among[1])
    assert not np.array_equal(alone, among[3])


@pytest.mark.parametrize(("threshold", "wanted"), [(0.8, (21, 6)), (0.5, (42, 3)), (1.0, (1, 128))])
def test_bands_are_the_most_selective_with_the_recall(threshold, wanted):
    assert band_shape(threshold) == wanted
    bands, rows = wanted
    assert 1 - (1 - threshold**rows) ** bands >= 0.99


def greedy(made, labels, threshold):
    """The rule by comparing all pairs."""
    kept, of = [], []
    for row, sketch in enumerate(made):
        alike = [k for k in kept if labels[k] == labels[row] and (made[k] == sketch).mean() >= threshold]
        of.append(alike[0] if alike else row)
        if not alike:
            kept.append(row)
    return kept, of


def families(rng, count):
    """Sets in families of near-copies."""
    sets = []
    for _ in range(count):
        base = rng.integers(0, 1_000_000, 80)
        for _ in range(rng.integers(1, 6)):
            copy = base.copy()
            changed = rng.choice(80, rng.integers(0, 4), replace=False)
            copy[changed] = rng.integers(0, 1_000_000, len(changed))
            sets.append(copy.tolist())
    order = rng.permutation(len(sets))
    return [sets[place] for place in order]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_index_admits_what_comparing_all_pairs_admits(seed):
    rng = np.random.default_rng(seed)
    made = sketches(hashed(families(rng, 300)))
    labels = rng.integers(0, 2, len(made)).astype(np.uint64)
    kept, of = greedy(made, labels, 0.7)
    index = SketchIndex(0.7)
    places, similarity = index.admit(made, labels)
    assert len(index) == len(kept) < 0.8 * len(made)
    assert [kept[place] == row for row, place in enumerate(places)] == [o == row for row, o in enumerate(of)]
    for row, place in enumerate(places):
        assert similarity[row] == pytest.approx((made[kept[place]] == made[row]).mean())
        assert similarity[row] >= 0.7


@pytest.mark.slow
def test_batches_do_not_matter_nor_does_restoring():
    rng = np.random.default_rng(7)
    made = sketches(hashed(families(rng, 200)))
    labels = np.zeros(len(made), np.uint64)
    whole = SketchIndex(0.8)
    wanted, _ = whole.admit(made, labels)
    parts, restored, got = SketchIndex(0.8), SketchIndex(0.8), []
    for start in range(0, len(made), 37):
        got.append(parts.admit(made[start : start + 37], labels[start : start + 37])[0])
    assert np.concatenate(got).tolist() == wanted.tolist()
    half = len(made) // 2
    originals = np.unique(wanted[:half], return_index=True)[1]
    restored.restore(made[originals], labels[originals])
    assert restored.admit(made[half:], labels[half:])[0].tolist() == wanted[half:].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.95])
def test_pairs_at_the_threshold_are_compared(threshold):
    pairs, exact = pairs_of(threshold, 200, 2000)
    assert abs(exact - threshold) < 0.003
    left, right = (sketches(hashed(side)) for side in zip(*pairs, strict=True))
    index, labels = SketchIndex(threshold), np.arange(2000, dtype=np.uint64) % 2
    index.restore(left, labels)
    row, place = index.candidates(right, labels)
    assert (row == place).sum() >= 0.99 * 2000
    assert (labels[row] == labels[place]).all()
    assert len(index.candidates(right, labels + np.uint64(2))[0]) == 0


@pytest.mark.slow
def test_candidates_are_all_pairs_with_an_equal_band():
    rng = np.random.default_rng(3)
    made = sketches(hashed(families(rng, 150)))
    bands, width = band_shape(0.6)
    index, labels = SketchIndex(0.6), np.zeros(len(made), np.uint64)
    for start in range(0, len(made), 40):
        index.restore(made[start : start + 40], labels[start : start + 40])
    parts = made[:, : bands * width].reshape(len(made), bands, width)
    equal = (parts[:, None] == parts[None]).all(axis=3).any(axis=2)
    found = np.zeros_like(equal)
    found[index.candidates(made, labels)] = True
    assert np.array_equal(found, equal)


def test_sketches_of_a_stored_buffer_stay_what_they_were():
    """Buffers keep sketches beside them: other numbers need a new `_FORMAT` in fingerprints."""
    words = [
        " ".join(f"Wort{(row * 31 + i * i) % 97} \u00c4{i % 7}" for i in range(5 * row)) for row in range(9)
    ]
    tokens = pa.array([[(row * i) % 211 for i in range(40)] for row in range(9)], pa.list_(pa.int32()))
    table = pa.table({"completion_text": words, "token_ids": tokens})
    digests = [
        xxhash.xxh3_64_hexdigest(sketches(shingles(table, column, 3))[1:].tobytes())
        for column in ("completion_text", "token_ids")
    ]
    assert digests == GOLDEN


GOLDEN = ["ae2092a2da013670", "c3a6d75a4f0eaffa"]


def test_nothing_is_admitted_of_nothing():
    places, similarity = SketchIndex(0.8).admit(np.zeros((0, SIZE), np.uint16), np.zeros(0, np.uint64))
    assert (len(places), len(similarity)) == (0, 0)
