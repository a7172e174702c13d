"""Types of the numbers that losses take, with their bounds, which a recipe's values are checked against."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
"""A number in [0, 1]."""
UpToOne = Annotated[float, Field(gt=0, le=1)]
"""A number in (0, 1]; how far below 1 a ratio may be."""
AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0)]
