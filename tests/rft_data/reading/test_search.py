"""Search by words and by meaning: finds what is there, also what came after the index, under filters."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import BusyError, ConflictError, RecipeError, RowError
from rft_data.core.filters import Compare
from rft_data.reading.search import Hit, embed, fuse, index_text, search_text, similar, vectors
from tests.rft_data.conftest import EVERYWHERE, make_experience

WORDS = ["alpha", "beta", "gamma", "delta"]


def rows(start: int, stop: int) -> list:
    return [
        make_experience(
            n, completion_text=f"{WORDS[n % 4]} the number{n} x=y+{n}", reward=n / 100, group_id=f"g{n // 4}"
        )
        for n in range(start, stop)
    ]


def toy(texts: list[str]) -> np.ndarray:
    """Eight numbers a text: its words' hashes summed, so that texts which share words are near."""
    made = np.zeros((len(texts), 8), np.float32)
    for place, text in enumerate(texts):
        for word in text.split():
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
            made[place] += np.random.default_rng(seed).normal(size=8)
    return made


def found(hits: list[Hit]) -> set[int]:
    return {hit.seq for hit in hits}


@pytest.mark.slow
def test_words_are_found_indexed_and_unindexed_alike(buffer):
    buffer.append(rows(0, 10))
    assert index_text(buffer).new == 10
    buffer.append(rows(10, 20))
    queries = ["alpha", "NUMBER7", "Number17", "number3 number14", "the", "nothing", "x=y+5"]
    before = [found(search_text(buffer, text, 100)) for text in queries]
    assert before == [set(range(0, 20, 4)), {7}, {17}, {3, 14}, set(range(20)), set(), set(range(20))]
    assert index_text(buffer).new == 10
    assert [found(search_text(buffer, text, 100)) for text in queries] == before


def test_without_an_index_words_are_refused(buffer):
    buffer.append(rows(0, 2))
    with pytest.raises(RecipeError, match="no full-text index"):
        search_text(buffer, "alpha")


def test_conversations_are_searched_where_their_column_is_named(buffer: Buffer) -> None:
    asked = [{"role": "user", "content": "what of the heron?"}, {"role": "assistant", "content": "none"}]
    buffer.append([*rows(0, 3), make_experience(3, completion_text="none", messages=asked)])
    assert index_text(buffer, "messages").new == 4
    assert found(search_text(buffer, "heron", column="messages")) == {3}
    with pytest.raises(RecipeError):  # the other column has no index
        search_text(buffer, "heron")


@pytest.mark.slow
@EVERYWHERE
def test_rows_after_the_index_are_found_by_a_reader(buffer):
    buffer.append(rows(0, 8))
    index_text(buffer)
    buffer.append(rows(8, 12))
    with Buffer(buffer.location, read_only=True) as reader:
        assert found(search_text(reader, "number9 number2")) == {9, 2}
    done = index_text(buffer)
    assert (done.rows, done.new) == (12, 4)
    assert index_text(buffer).new == 0
    assert found(search_text(buffer, "number9")) == {9}


@pytest.mark.slow
@EVERYWHERE
def test_index_survives_appends_and_compaction(buffer):
    for n in range(0, 40, 4):
        buffer.append(rows(n, n + 4))
    index_text(buffer)
    buffer.compact()
    buffer.append(rows(40, 44))
    buffer.compact()
    assert found(search_text(buffer, "number41 number3")) == {41, 3}
    assert buffer.take([41]).num_rows == 1


@pytest.mark.slow
def test_words_are_filtered_before_the_best_are_chosen(buffer):
    buffer.append(rows(0, 40))
    index_text(buffer)
    where = Compare("reward", "ge", 0.3)
    assert found(search_text(buffer, "alpha", 5, where=where)) == {32, 36}


@pytest.mark.slow
def test_all_words_can_be_demanded(buffer):
    buffer.append(rows(0, 20))
    index_text(buffer)
    assert found(search_text(buffer, "alpha number4", 50, match="all")) == {4}
    assert 0 in found(search_text(buffer, "alpha number4", 50))


@pytest.mark.parametrize("text", ['"', "AND (", "a OR", "+-*/", "\x00", "", "   ", "'; --", "😀"])
def test_a_query_is_words_and_no_syntax(buffer, text):
    buffer.append(rows(0, 4))
    index_text(buffer)
    assert search_text(buffer, text) == []


def test_text_search_refuses(buffer):
    with pytest.raises(RecipeError, match="did you mean 'messages'"):
        search_text(buffer, "x", column="message")
    with pytest.raises(RecipeError, match="at most"):
        search_text(buffer, "x" * 20_000)
    with Buffer(buffer.root, read_only=True) as reader, pytest.raises(BusyError, match="read-only"):
        index_text(reader)


def test_search_of_an_empty_buffer_finds_nothing(buffer):
    assert search_text(buffer, "alpha") == []


@pytest.mark.slow
@EVERYWHERE
def test_similar_is_the_exact_cosine_order(buffer):
    data = rows(0, 60)
    buffer.append(data)
    assert embed(buffer, toy, name="toy").new == 60
    hits = similar(buffer, "beta number5", 10, model=toy, name="toy")
    made = toy([row.completion_text for row in data])
    query = toy(["beta number5"])[0]
    cosine = made @ query / np.linalg.norm(made, axis=1) / np.linalg.norm(query)
    assert [hit.seq for hit in hits] == np.argsort(-cosine)[:10].tolist()
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(cosine)[::-1][:10], atol=1e-5)
    where = Compare("seq", "lt", 20)
    narrowed = similar(buffer, "beta number5", 5, model=toy, name="toy", where=where)
    assert [hit.seq for hit in narrowed] == np.argsort(-cosine[:20])[:5].tolist()


@pytest.mark.slow
def test_similar_to_a_row_leaves_it_out_and_needs_no_model(buffer):
    buffer.append(rows(0, 12))
    embed(buffer, toy, name="toy")
    hits = similar(buffer, 4, 3, model="toy")
    assert len(hits) == 3
    assert 4 not in found(hits)


@pytest.mark.slow
def test_embed_does_only_what_is_new(buffer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vectors, "BATCH_ROWS", 4)
    calls: list[int] = []

    def counting(texts: list[str]) -> np.ndarray:
        calls.append(len(texts))
        return toy(texts)

    buffer.append(rows(0, 10))
    assert embed(buffer, counting, name="toy").new == 10
    assert embed(buffer, counting, name="toy").new == 0
    buffer.append(rows(10, 13))
    done = embed(buffer, counting, name="toy")
    assert (done.new, done.rows, done.dim) == (3, 13, 8)
    assert sum(calls) == 13


@pytest.mark.slow
def test_embed_continues_after_it_was_cut_off(buffer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vectors, "BATCH_ROWS", 4)
    for n in range(0, 12, 4):
        buffer.append(rows(n, n + 4))
    seen: list[str] = []

    def failing(texts: list[str]) -> np.ndarray:
        if seen:
            raise RuntimeError("out of power")
        seen.extend(texts)
        return toy(texts)

    with pytest.raises(RuntimeError, match="power"):
        embed(buffer, failing, name="toy")
    assert embed(buffer, toy, name="toy").new == 12 - len(seen)
    assert found(similar(buffer, "alpha", 12, model=toy, name="toy")) == set(range(12))


@pytest.mark.slow
def test_two_models_of_one_width_do_not_mix(buffer):
    buffer.append(rows(0, 6))
    embed(buffer, toy, name="one")
    embed(buffer, lambda texts: -toy(texts), name="two")
    first = similar(buffer, "alpha the number0 x=y+0", 6, model=toy, name="one")
    assert len(first) == 6
    assert first[0].seq == 0
    assert first[0].score == pytest.approx(1.0, abs=1e-5)
    assert similar(buffer, "alpha the number0 x=y+0", 6, model=toy, name="two")[-1].seq == 0


@pytest.mark.slow
def test_embed_refuses(buffer):
    buffer.append(rows(0, 3))
    with pytest.raises(RecipeError, match="needs a name"):
        embed(buffer, toy)
    with pytest.raises(RecipeError, match="no embeddings by 'toy'"):
        similar(buffer, "alpha", model=toy, name="toy")
    with pytest.raises(RowError, match="NaN"):
        embed(buffer, lambda texts: np.full((len(texts), 4), np.nan), name="bad")
    with pytest.raises(RowError, match="shape"):
        embed(buffer, lambda texts: np.zeros(4), name="bad")
    embed(buffer, toy, name="toy")
    with pytest.raises(ConflictError, match="vectors of 3 numbers"):
        embed(buffer, lambda texts: np.ones((len(texts), 3)), name="narrow")
    with pytest.raises(RecipeError, match="has no embedding"):
        similar(buffer, 99, model="toy")
    with Buffer(buffer.root, read_only=True) as reader:
        assert len(similar(reader, "alpha", 2, model=toy, name="toy")) == 2
        with pytest.raises(BusyError, match="read-only"):
            embed(reader, toy, name="toy")


@pytest.mark.slow
def test_many_rows_get_an_index_and_still_find_the_newest(buffer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vectors, "INDEX_FROM", 300)
    for n in range(0, 320, 80):
        buffer.append(rows(n, n + 80))
    embed(buffer, toy, name="toy")
    indices = vectors._open(buffer).list_indices()
    assert [index.index_type for index in indices] == ["IvfFlat"]
    buffer.append(rows(320, 324))
    embed(buffer, toy, name="toy")
    hits = similar(buffer, "alpha the number320 x=y+320", 1, model=toy, name="toy")
    assert hits[0].seq == 320


def test_fused_ranks_follow_the_formula():
    words = [Hit(1, 9.0), Hit(2, 8.0)]
    meaning = [Hit(2, 0.9), Hit(3, 0.8)]
    made = fuse([words, meaning], 3)
    assert [hit.seq for hit in made] == [2, 1, 3]
    assert made[0].score == pytest.approx(1 / 62 + 1 / 61)


@pytest.mark.slow
def test_a_sentence_transformers_model_embeds(buffer, tmp_path: Path):
    model = tiny_sentence_model(tmp_path / "model")
    buffer.append(rows(0, 8))
    done = embed(buffer, model)
    assert (done.new, done.model) == (8, str(model))
    hits = similar(buffer, "alpha the number4 x=y+4", 2, model=model)
    assert hits[0].seq == 4
    assert hits[0].score == pytest.approx(1.0, abs=1e-4)


def test_a_model_that_is_not_there_is_a_recipe_error(buffer, tmp_path: Path):
    buffer.append(rows(0, 1))
    with pytest.raises(RecipeError, match="no sentence-transformers model"):
        embed(buffer, tmp_path / "absent")


def tiny_sentence_model(folder: Path) -> Path:
    """A random two-layer BERT over characters with mean pooling, saved as safetensors."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(c) for c in range(33, 127))]
    vocabulary += ["##" + chr(c) for c in range(33, 127)]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    plain = folder / "plain"
    BertModel(config).save_pretrained(plain)
    BertTokenizerFast(vocab={piece: number for number, piece in enumerate(vocabulary)}).save_pretrained(plain)
    words = Transformer(str(plain))
    SentenceTransformer(modules=[words, Pooling(words.get_embedding_dimension())]).save(str(folder / "st"))
    return folder / "st"
