"""The benchmark of adapters on the smallest model: the engine proves both ways, and the adapter is small."""

from pathlib import Path

import pytest

from benchmarks.adapters import measure


@pytest.mark.slow
def test_adapter_is_a_small_part_of_whole_weights(tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_layers": 1, "num_heads": 2, "intermediate_size": 128}
    found = measure(tmp_path, shape, versions=2)
    assert list(found) == ["whole", "adapter", "ratio"]
    assert all(cost.keys() == {"bytes", "publish_s", "load_s"} for cost in found.values())
    size = found["adapter"]["bytes"]
    assert found["ratio"]["bytes"] == size / found["whole"]["bytes"]
    assert 4 * 2 * 4 * 64 * 16 < size < found["whole"]["bytes"]  # four layers' two matrices in float32
