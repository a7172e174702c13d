"""Import and export: files and datasets in common formats, and training sets for TRL."""

from rft_data.exchange.formats.card import ExportReport
from rft_data.exchange.formats.chunk_intake import ImportReport
from rft_data.exchange.formats.exporting import export
from rft_data.exchange.formats.importing import import_into, ready_import
from rft_data.exchange.formats.records import Format
from rft_data.exchange.formats.registry import FORMATS, detect

__all__ = [
    "FORMATS",
    "ExportReport",
    "Format",
    "ImportReport",
    "detect",
    "export",
    "import_into",
    "ready_import",
]
