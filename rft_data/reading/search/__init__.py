"""Finding experiences by their words and by their meaning.

Indices and embeddings are made by the buffer's owner, when asked; searching needs only a reader, and rows
that came after the last indexing are found all the same.
"""

from rft_data.reading.search.full_text import Indexed, index_text, search_text
from rft_data.reading.search.hits import Hit, fuse
from rft_data.reading.search.vectors import Embedded, embed, similar

__all__ = ["Embedded", "Hit", "Indexed", "embed", "fuse", "index_text", "search_text", "similar"]
