"""The newest stored verdict of each row, wherever it is in the table."""

import numpy as np
import pyarrow as pa
import pytest

from rft_data.buffer import Buffer
from rft_data.run.rejudge import StoredVerdicts
from tests.rft_data.run.rejudge.explored import LENIENT, STRICT, explore, pipeline


@pytest.mark.slow
def test_the_newest_counts_and_pipelines_can_be_told_apart(buffer: Buffer) -> None:
    explore(buffer, [[1.0, 1.0], [1.0, 0.0]])
    strict, lenient = pipeline(STRICT), pipeline(LENIENT)
    buffer.annotate(lenient.run(buffer.take([1, 0])))
    newest = StoredVerdicts(buffer).verdicts([0, 1, 2, 3])
    assert newest.column("verdict").to_pylist() == ["kept"] * 4
    first = StoredVerdicts(buffer, strict.pipeline_hash).verdicts(np.array([3, 0, 1]))
    assert first.column("seq").to_pylist() == [3, 0, 1]
    assert first.column("verdict").to_pylist() == ["kept", "dropped", "dropped"]
    later = StoredVerdicts(buffer, lenient.pipeline_hash)
    assert later.verdicts([2, 1]).column("verdict").to_pylist() == [None, "kept"]
    assert later.judged(np.array([0, 1, 2, 3, 4, -1])).tolist() == [True, True, False, False, False, False]


@pytest.mark.slow
def test_of_two_verdicts_in_one_commit_the_later_counts(buffer: Buffer) -> None:
    explore(buffer, [[1.0, 0.0]])
    judged = pipeline(STRICT).run(buffer.take([0]))
    other = judged.set_column(judged.column_names.index("verdict"), "verdict", pa.array(["dropped"]))
    buffer.annotate(pa.concat_tables([judged, other.cast(judged.schema)]))
    assert StoredVerdicts(buffer).verdicts([0]).column("verdict").to_pylist() == ["dropped"]


@pytest.mark.slow
def test_verdicts_survive_compaction(buffer: Buffer) -> None:
    for n in range(5):
        explore(buffer, [[1.0, float(n % 2)]], run_id=f"run{n}")
    buffer.compact()
    verdicts = StoredVerdicts(buffer).verdicts(range(10)).column("verdict").to_pylist()
    assert verdicts == ["kept" if n % 2 == 0 else "dropped" for n in range(5) for _ in range(2)]


def test_without_annotations_there_is_nothing(buffer: Buffer) -> None:
    found = StoredVerdicts(buffer).verdicts([0, 5])
    assert found.num_rows == 2
    assert found.column("advantage").null_count == 2
