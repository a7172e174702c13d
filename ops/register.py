"""Target of the `data_juicer.ops` entry point: importing it puts our operators into OPERATORS.

Data-Juicer imports it while it imports itself, so nothing here may import `data_juicer.core`.
"""

from __future__ import annotations

import importlib

from ops import OPERATOR_MODULES

for _module in OPERATOR_MODULES.values():
    importlib.import_module(_module)
