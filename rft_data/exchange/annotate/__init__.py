"""Annotation by people, in a terminal or with Label Studio.

Their answers are stored as feedback and preference pairs.
"""

from rft_data.exchange.annotate.corrections import store_corrections, store_said
from rft_data.exchange.annotate.label_studio import Exported, Imported, export_tasks, import_annotations
from rft_data.exchange.annotate.session import Session
from rft_data.exchange.annotate.subjects import Subject, comparisons, ratings, store_preferred

__all__ = [
    "Exported",
    "Imported",
    "Session",
    "Subject",
    "comparisons",
    "export_tasks",
    "import_annotations",
    "ratings",
    "store_corrections",
    "store_preferred",
    "store_said",
]
