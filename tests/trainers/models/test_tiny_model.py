"""The tiny model folder: round trips of text, same seed same bytes, an ordinary folder."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from trainers.models.tiny_model import build_tiny_model, build_tiny_tokenizer

TOKENIZER = build_tiny_tokenizer()
PRINTABLE = st.text(st.characters(min_codepoint=32, max_codepoint=126))


@pytest.mark.slow
@given(st.one_of(PRINTABLE, st.text().map(lambda text: unicodedata.normalize("NFC", text))))
def test_tokenizer_gives_every_text_back(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= i < len(TOKENIZER) for i in ids)


@pytest.mark.slow
@given(st.from_regex(r"[0-9]{1,12}", fullmatch=True))
def test_tokenizer_gives_each_digit_one_token(digits: str) -> None:
    ids = TOKENIZER(digits, add_special_tokens=False)["input_ids"]
    assert [TOKENIZER.decode([i]) for i in ids] == list(digits)


def test_chat_template_ends_an_answer_and_opens_the_next(model_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    question = [{"role": "user", "content": "1+1?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    answered = tokenizer.apply_chat_template(
        [*question, {"role": "assistant", "content": "2"}], return_dict=False
    )
    assert answered[: len(prompt)] == prompt
    assert tokenizer.decode(answered[len(prompt) :]) == "2" + tokenizer.eos_token
    assert tokenizer.convert_ids_to_tokens(prompt[-1]) == "<|assistant|>"


@pytest.mark.slow
def test_same_seed_gives_the_same_weights_and_leaves_the_generator_alone(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    paths = [build_tiny_model(tmp_path / str(i), seed=seed, num_layers=1) for i, seed in enumerate((5, 5, 6))]
    assert torch.equal(torch.get_rng_state(), state)
    first, second, other = ((path / "model.safetensors").read_bytes() for path in paths)
    assert first == second != other


def test_loaded_tokenizer_is_the_one_that_was_written(model_path: Path) -> None:
    loaded = AutoTokenizer.from_pretrained(model_path)
    assert type(loaded) is type(TOKENIZER)
    assert loaded.get_vocab() == TOKENIZER.get_vocab()
    text = "State the final answer to: 12 + 345 =<|assistant|>a; b'c #### -7<|eos|>"
    assert loaded(text)["input_ids"] == TOKENIZER(text)["input_ids"]


def test_folder_says_where_sequences_end(model_path: Path) -> None:
    tokenizer, config = AutoTokenizer.from_pretrained(model_path), AutoConfig.from_pretrained(model_path)
    generation = GenerationConfig.from_pretrained(model_path)
    assert config.eos_token_id == generation.eos_token_id == tokenizer.eos_token_id is not None
    assert config.pad_token_id == tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    assert config.tie_word_embeddings
    assert config.vocab_size == len(tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("hidden_size", [64, 128])
def test_model_has_the_asked_shape_and_predicts(tmp_path: Path, hidden_size: int) -> None:
    path = build_tiny_model(tmp_path / "m", seed=0, hidden_size=hidden_size, num_layers=3)
    model = AutoModelForCausalLM.from_pretrained(path)
    assert len(model.model.layers) == 3
    assert model.config.hidden_size == hidden_size
    assert model(torch.tensor([[5, 6]])).logits.shape == (1, 2, model.config.vocab_size)


def test_further_words_are_one_token_each_and_change_no_other() -> None:
    more = build_tiny_tokenizer(["Guess a number."])
    assert more.tokenize("Guess a number.") == ["Guess", "Ġa", "Ġnumber", "."]
    assert len(TOKENIZER.tokenize("Guess a number.")) > 8
    prompt = "State the final answer to the following arithmetic problem: 4 + 13 ="
    assert more.tokenize(prompt) == TOKENIZER.tokenize(prompt)
    assert build_tiny_tokenizer([]).get_vocab() == TOKENIZER.get_vocab()
