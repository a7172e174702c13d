"""The weights that the explorers of a fleet are to serve: which ones, and whose folders are kept meanwhile.

Which explorers there are, and what happens when a load fails, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rft_data.core.files import folder_bytes
from rft_data.core.roles import WeightSender
from rft_data.core.rows import WeightRef
from rft_data.loop.arms import Arms
from rft_data.loop.member import Member
from rft_data.weights.versions import VersionRegistry


class ServedWeights:
    """The published weights, and the loads of them that are under way."""

    def __init__(
        self, versions: VersionRegistry, deadline_s: float, sender: WeightSender | None, arms: Arms | None
    ) -> None:
        """Before the first `publish` there are none; see `Fleet` for the arguments."""
        self._versions = versions
        self._deadline_s = deadline_s
        self._sender = sender
        self._arms = arms
        self._published: WeightRef | None = None
        self._published_bytes = 0

    def publish(self, ref: WeightRef, members: Sequence[Member]) -> None:
        """Have every explorer load these weights, or older ones where it is pinned to such.

        One that is still loading others loads these next.
        """
        self._published = ref
        if self._arms is not None:
            self._arms.publish(ref)
        self._published_bytes = folder_bytes(Path(ref.path))
        self.follow(members)

    def follow(self, members: Sequence[Member]) -> None:
        """Have each load the weights it should serve; one that is starting or loading does so afterwards."""
        wanting: dict[WeightRef, list[Member]] = {}
        for member in members:
            ref = self._published if self._arms is None else self._arms.wanted(member)
            is_free = member.starting is None and member.loading is None and member.stays
            if is_free and ref is not None and ref.version != member.version:
                wanting.setdefault(ref, []).append(member)
        for ref, ready in wanting.items():
            if self._sender is not None:
                self._sender.offer(ref, [member.role.name for member in ready])
            for member in ready:
                self._versions.hold(ref.version)
                member.follow(ref, self._deadline_s)

    def end_load(self, member: Member) -> None:
        """Note that an explorer loads nothing any more: the folder is not kept for it."""
        if member.loading is not None:
            self._versions.let_go(member.loading.ref.version)
            member.loading = None

    def publication(self, members: Sequence[Member]) -> dict[str, float]:
        """Bytes of the last published weights, and the seconds of the slowest explorer that loaded them."""
        loads = [member.loaded_s for member in members if member.version >= 0 and member.loaded_s]
        if not loads:
            return {}
        size, slowest = self._published_bytes, max(loads)
        return {
            "publication_bytes": float(size),
            "publication_s": slowest,
            "publication_gb_per_s": len(loads) * size / slowest / 1e9,
        }
