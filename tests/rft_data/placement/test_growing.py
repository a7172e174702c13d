"""A cluster whose autoscaler adds a node when a run asks for what it does not have yet."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from rft_data.core.errors import StalledError
from rft_data.placement.calls import Patience
from rft_data.placement.ray import RayPlacement
from tests.ray_head import ray_head
from tests.rft_data.placement.conftest import spec


@pytest.mark.heavy
def test_a_run_waits_for_the_node_that_an_autoscaler_adds(caplog: pytest.LogCaptureFixture) -> None:
    ray = pytest.importorskip("ray")
    ray.shutdown()
    with ray_head(cpus=0, grows_by=2) as head, caplog.at_level(logging.WARNING):
        placement = RayPlacement("grows", patience=Patience(nodes_s=120, place_s=120), address=head.address)
        try:
            asked = replace(spec("toy-0"), cpus=2)
            placement.preflight([asked])
            assert "waiting for nodes of the Ray cluster" in caplog.text
            assert ray.cluster_resources()["CPU"] == 2
            small = RayPlacement("too-much", patience=Patience(nodes_s=2, place_s=2), address=head.address)
            with pytest.raises(StalledError, match=r"(?s)does not have:.*toy-1 +3 +2 +1.*add nodes"):
                small.preflight([replace(spec("toy-1"), cpus=3)])
        finally:
            placement.close(now=True)
            ray.shutdown()
