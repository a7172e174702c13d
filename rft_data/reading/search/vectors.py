"""Search by meaning, over embeddings of completions in a table of their own.

Small tables are searched by brute force, large ones with an IVF_FLAT index: HNSW takes minutes to build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rft_data.buffer import Buffer
from rft_data.core.canonical import bytes_id
from rft_data.core.errors import ConflictError, RecipeError
from rft_data.core.filters import Compare, Filter, to_sql
from rft_data.core.scratch import on_hub
from rft_data.reading.search.full_text import must_own
from rft_data.reading.search.hits import Hit
from rft_data.reading.search.models import Embedder, load_embedder, model_name, unit_vectors

if TYPE_CHECKING:
    from lancedb.db import DBConnection
    from lancedb.table import Table

TABLE = "embeddings"
INDEX_FROM = 100_000
"""Rows; below, brute force takes 50 to 120 ms."""
BATCH_ROWS = 4_096
_CROWD = 16
"""Fragments left unmerged."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The result of one call of `embed`."""

    model: str
    rows: int
    """Experiences with an embedding by this model."""
    new: int
    dim: int


def embeddings_schema(dim: int) -> pa.Schema:
    """Schema of the side table for vectors of `dim` numbers."""
    return pa.schema(
        [
            pa.field("key", pa.string(), nullable=False, metadata={"doc": "experience_id"}),
            pa.field("seq", pa.int64(), nullable=False, metadata={"doc": "row of the experience"}),
            pa.field("model", pa.string(), nullable=False, metadata={"doc": "who embedded it"}),
            pa.field("text_digest", pa.string(), nullable=False, metadata={"doc": "blake2b-128 of the text"}),
            pa.field("vec", pa.list_(pa.float32(), dim), nullable=False, metadata={"doc": "of unit length"}),
        ]
    )


def embed(buffer: Buffer, model: str | Path | Embedder, *, name: str | None = None) -> Embedded:
    """Embed the completion of every experience that has no embedding by this model yet. For the owner.

    `model`: path or hub id of a sentence-transformers model, or a function from texts to an [n, dim] array;
    `name`: what its vectors are model_id under (the path or id when left out).
    Stored batch by batch: a call that was cut off is continued by the next.
    Raises: BusyError if the buffer is open read-only; ConflictError if the table holds vectors of another
        width; MissingExtraError, RecipeError or RowError about the model (see `models`).
    """
    must_own(buffer, "embed")
    model_id, embedder, table = model_name(model, name), None, _open(buffer)
    present = _seqs(table, model_id)
    new, dim = 0, 0 if table is None else _dim(table)
    for rows in _missing(buffer, present):
        embedder = embedder or load_embedder(model)
        texts = rows.column("completion_text").to_pylist()
        vectors = unit_vectors(embedder, texts)
        table = table if table is not None else _create(buffer, vectors.shape[1])
        dim = _dim(table)
        if vectors.shape[1] != dim:
            raise ConflictError(
                f"model '{model_id}' makes vectors of {vectors.shape[1]} numbers, those of {buffer.location} "
                f"have {dim}; one buffer holds one width. Use a model of {dim}, or move the folder "
                f"'{TABLE}.lance' aside to start over."
            )
        table.add(_rows(rows, model_id, texts, vectors))
        new += len(texts)
    if table is not None and new:
        _tidy(buffer, table)
    return Embedded(model_id, len(present) + new, new, dim)


def similar(
    buffer: Buffer,
    query: str | int,
    k: int = 10,
    *,
    model: str | Path | Embedder,
    name: str | None = None,
    where: Filter | None = None,
) -> list[Hit]:
    """The k experiences whose completion means most nearly the same, best first; exact below INDEX_FROM rows.

    `query`: a text, or the row number of an embedded experience (which is left out of the result, and for
    which the model is not loaded). `model` and `name` as in `embed`.
    Raises: RecipeError if nothing was embedded by this model, or not this row, or the filter does not fit.
    """
    table, model_id = _open(buffer), model_name(model, name)
    if table is None or not _count(table, model_id):
        raise RecipeError(
            f"buffer {buffer.location} has no embeddings by '{model_id}'; run embed() with it first."
        )
    if isinstance(query, str):
        vector = unit_vectors(load_embedder(model), [query])[0]
    else:
        vector = _stored(table, model_id, query)
    wanted = k + (not isinstance(query, str))
    if where is not None:
        hits = _scan(table, model_id, vector, wanted, _selected(buffer, where))
    else:
        hits = _nearest(table, model_id, vector, wanted)
    return [hit for hit in hits if hit.seq != query][:k]


def has_vectors(buffer: Buffer, model_id: str) -> bool:
    """Whether an experience was embedded by this model."""
    table = _open(buffer)
    return table is not None and _count(table, model_id) > 0


def embedded_by(buffer: Buffer, seq: int) -> list[str]:
    """The models by which one experience was embedded, sorted."""
    table = _open(buffer)
    if table is None:
        return []
    rows = table.search().where(to_sql(Compare("seq", "eq", seq), table.schema)).select(["model"]).to_arrow()
    return sorted(set(rows.column("model").to_pylist()))


# --- the side table ------------------------------------------------------------------------------------


def _connect(buffer: Buffer) -> DBConnection:
    import lancedb

    return lancedb.connect(
        buffer.location,
        storage_options={"new_table_enable_stable_row_ids": "true"},
        read_consistency_interval=timedelta(0),
    )


def _open(buffer: Buffer) -> Table | None:
    if on_hub(buffer.location):
        return None  # a hub has no vectors
    db = _connect(buffer)
    return db.open_table(TABLE) if TABLE in db.list_tables().tables else None


def _create(buffer: Buffer, dim: int) -> Table:
    return _connect(buffer).create_table(TABLE, schema=embeddings_schema(dim))


def _dim(table: Table) -> int:
    return int(table.schema.field("vec").type.list_size)


def _by_model(model_id: str, table: Table) -> str:
    return to_sql(Compare("model", "eq", model_id), table.schema)


def _count(table: Table, model_id: str) -> int:
    return int(table.count_rows(_by_model(model_id, table)))


def _seqs(table: Table | None, model_id: str) -> npt.NDArray[np.int64]:
    """Rows embedded by the model, sorted."""
    if table is None:
        return np.zeros(0, np.int64)
    return np.sort(
        np.asarray(table.search().where(_by_model(model_id, table)).select(["seq"]).to_arrow().column("seq"))
    )


def _rows(rows: pa.Table, model_id: str, texts: list[str], vectors: npt.NDArray[np.float32]) -> pa.Table:
    dim = vectors.shape[1]
    columns = [
        rows.column("experience_id"),
        rows.column("seq"),
        pa.array([model_id] * len(texts)),
        pa.array([bytes_id(text.encode()) for text in texts]),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim),
    ]
    return pa.Table.from_arrays(columns, schema=embeddings_schema(dim))


def _missing(buffer: Buffer, present: npt.NDArray[np.int64]) -> Iterator[pa.Table]:
    """Experiences without an embedding, BATCH_ROWS at a time."""
    gaps = np.flatnonzero(present != np.arange(len(present)))
    first = int(gaps[0]) if len(gaps) else len(present)
    waiting: list[pa.RecordBatch] = []
    columns = ["seq", "experience_id", "completion_text"]
    for batch in buffer.batches("experiences", columns, Compare("seq", "ge", first)):
        fresh = batch.filter(pa.array(~np.isin(np.asarray(batch.column("seq")), present)))
        for start in range(0, fresh.num_rows, BATCH_ROWS):
            waiting.append(fresh.slice(start, BATCH_ROWS))
            if sum(part.num_rows for part in waiting) >= BATCH_ROWS:
                yield pa.Table.from_batches(waiting)
                waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)


def _tidy(buffer: Buffer, table: Any) -> None:
    """Merge small fragments; build the index where there are many rows, or extend it.

    `table` is a Table, one method of which has no types.
    """
    import lance

    dataset = lance.dataset(f"{buffer.location}/{TABLE}.lance")
    if len(dataset.get_fragments()) > _CROWD:
        dataset.optimize.compact_files(num_threads=1)
    if table.list_indices():
        dataset.optimize.optimize_indices()
    elif table.count_rows() >= INDEX_FROM:
        from lancedb.index import IvfFlat

        table.checkout_latest()
        table.create_index("vec", config=IvfFlat(distance_type="dot"))
    dataset.cleanup_old_versions(older_than=timedelta(minutes=10), error_if_tagged_old_versions=False)


# --- nearest neighbours --------------------------------------------------------------------------------


def _stored(table: Table, model_id: str, seq: int) -> npt.NDArray[np.float32]:
    wanted = f"{_by_model(model_id, table)} AND {to_sql(Compare('seq', 'eq', seq), table.schema)}"
    rows = table.search().where(wanted).select(["vec"]).limit(1).to_arrow()
    if rows.num_rows == 0:
        raise RecipeError(
            f"experience {seq} has no embedding by '{model_id}'; run embed() to add the newest rows."
        )
    return np.asarray(rows.column("vec").combine_chunks().flatten(), np.float32)


def _nearest(table: Any, model_id: str, vector: npt.NDArray[np.float32], k: int) -> list[Hit]:
    """`table` is a Table; its type tells no search by vector from one by words."""
    query = table.search(vector, vector_column_name="vec")
    mine = query.distance_type("dot").where(_by_model(model_id, table), prefilter=True)
    found = mine.select(["seq", "_distance"]).limit(k).to_arrow()
    return [Hit(row["seq"], 1.0 - row["_distance"]) for row in found.to_pylist()]


def _selected(buffer: Buffer, where: Filter) -> npt.NDArray[np.int64]:
    """Row numbers that the filter lets through, sorted."""
    return np.sort(np.asarray(buffer.read("experiences", ["seq"], where).column("seq")))


def _scan(
    table: Table, model_id: str, vector: npt.NDArray[np.float32], k: int, selected: npt.NDArray[np.int64]
) -> list[Hit]:
    """The k nearest among the selected rows, by one pass over the vectors: an `IN` of many rows is slower."""
    seqs, scores = np.zeros(0, np.int64), np.zeros(0, np.float32)
    rows = table.search().where(_by_model(model_id, table)).select(["seq", "vec"])
    for batch in rows.to_batches(8192):
        mine = np.isin(np.asarray(batch.column("seq")), selected)
        vectors = np.asarray(batch.column("vec").flatten(), np.float32).reshape(batch.num_rows, -1)
        seqs = np.concatenate([seqs, np.asarray(batch.column("seq"))[mine]])
        scores = np.concatenate([scores, vectors[mine] @ vector])
        best = np.lexsort((seqs, -scores))[:k]
        seqs, scores = seqs[best], scores[best]
    return [Hit(int(seq), float(score)) for seq, score in zip(seqs, scores, strict=True)]
