"""A request that is refused by the field that it is about."""

from __future__ import annotations

from rft_data.core.errors import RowError


class Refused(RowError):
    """A request that cannot be honoured exactly; `field` is what it is about."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field
