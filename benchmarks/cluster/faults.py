"""Losses when nodes are killed or a link is cut, and what an eavesdropper on the link reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.cluster.link import Link
from benchmarks.cluster.processes import Cluster, Hub, Process, lost
from benchmarks.rows import GROUP

_SILENT_CUT_S = 25.0
"""Longer than it takes until silence is noticed."""
_REFUSING_CUT_S = 1.0
_FEW = 3
"""Groups that are stored before and after each fault."""


class Crowd:
    """Explorers on every node that append as fast as the hub takes it, until they are told to end."""

    def __init__(self, cluster: Cluster, address: str, explorers: int, prefix: str) -> None:
        """`prefix`: of their names."""
        self._cluster, self._stop = cluster, cluster.root / f"{prefix}.stop"
        count = max(explorers, len(cluster.nodes))
        names = [f"{prefix}e{number}" for number in range(count)]
        self.by_node = [names[place :: len(cluster.nodes)] for place in range(len(cluster.nodes))]
        self._address = address
        for node, mine in zip(cluster.nodes, self.by_node, strict=True):
            self.start(node, mine)

    def start(self, node: Process, names: Sequence[str]) -> None:
        """Let explorers of these names begin on a node."""
        order = {"do": "explore", "names": names, "window": 1, "until": str(self._stop)}
        node.order(**order, address=self._address)

    @property
    def acknowledged(self) -> set[str]:
        """Groups that were answered."""
        return self._cluster.acknowledged([name for names in self.by_node for name in names])

    def go_on(self) -> None:
        """Wait until some more groups are acknowledged."""
        before = len(self.acknowledged)
        while len(self.acknowledged) < before + _FEW:
            time.sleep(0.02)

    def end(self) -> None:
        """Wait for all that is under way."""
        Path(self._stop).touch()
        for node in self._cluster.nodes:
            node.answer()


def what_breaks(cluster: Cluster, rows: pa.Table, explorers: int, *, silent: bool) -> dict[str, Any]:
    """All faults on one hub: a search of the link, a cut link, killed nodes.

    Args: rows: what is replayed. silent: also cut the link without ending connections, for 25 s.
    """
    needles = [*_needles(rows), cluster.secret.encode()]
    found = _heard(cluster, needles)
    with cluster.hub("faults") as hub, Link(hub.port, needles) as link:
        cut = _cut(cluster, hub, link, explorers, silent=silent)
        killed = _killed(cluster, hub, explorers)
        found |= {"bytes_in_clear": link.seen, "bytes_under_tls": link.passed}
    for name, groups in (("link_cut", cut), ("node_kill", killed)):
        found[f"{name}_lost"] = lost(hub.folder, groups, GROUP)
        found[f"{name}_acknowledged"] = len(groups) * GROUP
    return found


def _heard(cluster: Cluster, needles: Sequence[bytes]) -> dict[str, Any]:
    """The search of `what_breaks` where nothing is encrypted. Raises: RuntimeError if it finds nothing."""
    with cluster.hub("heard", "127.0.0.1") as hub, Link(hub.port, needles) as link:
        crowd = Crowd(cluster, hub.through(link.port), 1, "heard")
        crowd.go_on()
        crowd.end()
        if not link.seen:
            raise RuntimeError(
                "without TLS the known contents were not found on the link: the search is blind"
            )
    return {"bytes_in_clear_without_tls": link.seen}


def _cut(cluster: Cluster, hub: Hub, link: Link, explorers: int, *, silent: bool) -> set[str]:
    """Cut the link amid appends; the groups that were acknowledged."""
    crowd = Crowd(cluster, hub.through(link.port), explorers, "cut")
    for refuses, cut_s in ((True, _REFUSING_CUT_S), (False, _SILENT_CUT_S))[: 1 + silent]:
        crowd.go_on()
        link.cut(refuses=refuses)
        time.sleep(cut_s)
        link.mend()
    crowd.go_on()
    crowd.end()
    return crowd.acknowledged


def _killed(cluster: Cluster, hub: Hub, explorers: int) -> set[str]:
    """SIGKILL half of the nodes amid appends; others go on, new ones begin. The groups acknowledged."""
    crowd = Crowd(cluster, hub.address, explorers, "kill")
    crowd.go_on()
    half = len(cluster.nodes) // 2
    for node in cluster.nodes[:half]:
        node.kill()
    cluster.nodes[:half] = [cluster.node() for _ in range(half)]
    crowd.by_node.append([f"again{number}" for number in range(half)])
    for node, name in zip(cluster.nodes[:half], crowd.by_node[-1], strict=True):
        crowd.start(node, [name])
    crowd.go_on()
    crowd.end()
    return crowd.acknowledged


def _needles(rows: pa.Table) -> list[bytes]:
    """Contents of the first rows as they are in memory: text, and sixteen token ids."""
    texts = [text.encode()[:40] for text in rows.column("completion_text").to_pylist()[:GROUP]]
    lists = rows.column("token_ids")[:GROUP]
    return [*texts, *(ids.values.to_numpy(zero_copy_only=False)[:16].tobytes() for ids in lists)]
