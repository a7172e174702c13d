import math

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import UnknownComponentError
from rft_data.reading.run_metrics import run_metrics
from rft_data.run.watch.metrics_log import MetricsLog


@pytest.mark.slow
def test_metrics_are_a_frame_of_one_row_per_step(buffer: Buffer) -> None:
    with MetricsLog(buffer, "run") as metrics:
        metrics.record(0, 1, {"trainer": {"reward": 0.25}, "explorer-0": {"tokens": 7}})
        metrics.record(1, 2, {"trainer": {"reward": 0.5}})
        metrics.record(1, 3, {"trainer": {"reward": 0.75}})  # taken again after a resume
    with MetricsLog(buffer, "other") as metrics:
        metrics.record(9, 1, {"trainer": {"reward": 9}})
    frame = run_metrics(buffer, "run")
    assert frame.index.tolist() == [0, 1]
    assert frame["trainer/reward"].tolist() == [0.25, 0.75]
    assert frame["loop/policy_version"].tolist() == [1, 3]
    assert frame["explorer-0/tokens"][0] == 7
    assert math.isnan(frame["explorer-0/tokens"][1])
    some = run_metrics(buffer, "run", ["trainer/reward", "trainer/tokens", "explorer-0/reward"])
    assert some.columns.tolist() == ["trainer/reward"]
    assert some["trainer/reward"].tolist() == [0.25, 0.75]


def test_a_run_without_metrics_is_named_with_those_that_have_some(buffer: Buffer) -> None:
    with MetricsLog(buffer, "quickstart") as metrics:
        metrics.record(0, 1, {})
    with pytest.raises(UnknownComponentError, match=r"of run 'quickstrat'; did you mean 'quickstart'\?"):
        run_metrics(buffer, "quickstrat")
