"""Search for experiences by words and by meaning.

The buffer's owner makes indices and embeddings, when asked. Searching needs only a reader, and full-text
search also finds rows that came after the last indexing.
"""

from rft_data.reading.search.full_text import Indexed, index_text, search_text, unindexed
from rft_data.reading.search.hits import Hit, fuse
from rft_data.reading.search.vectors import Embedded, embed, embedded_by, has_vectors, similar

__all__ = [
    "Embedded",
    "Hit",
    "Indexed",
    "embed",
    "embedded_by",
    "fuse",
    "has_vectors",
    "index_text",
    "search_text",
    "similar",
    "unindexed",
]
