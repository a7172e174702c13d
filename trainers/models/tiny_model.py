"""A tiny random Qwen2 language model and its tokenizer, for tests, benchmarks and the quickstart.

It is an ordinary model folder: transformers and vLLM load it without a network. Its weights are random.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

PAD, END, USER, ASSISTANT = "<|pad|>", "<|eos|>", "<|user|>", "<|assistant|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|eos|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_WORDS = ("State the final answer to the following arithmetic problem: x + x - x =", "x; x #### x")
"""Each word becomes one token, so that arithmetic prompts are short; other text falls back to bytes."""


def build_tiny_tokenizer(words: Sequence[str] = ()) -> Qwen2Tokenizer:
    """Byte-level BPE: one token per digit and per word of arithmetic prompts, else one per byte.

    Args: words: texts whose words become one token each, too.
    """
    return train_tokenizer(
        (*_WORDS, *words),
        [USER, ASSISTANT],
        vocab_size=1024,
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
    )


def train_tokenizer(
    texts: Iterable[str], special: Sequence[str], *, vocab_size: int, **settings: object
) -> Qwen2Tokenizer:
    """A byte-level BPE of some texts, with PAD, END and further special ones.

    The class is transformers' own Qwen2 tokenizer: AutoTokenizer builds that class for every Qwen2 folder,
    and ignores the pre-tokenizer of any other.

    Args: settings: further ones of the class.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=1,
            special_tokens=[PAD, END, *special],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    learned = json.loads(core.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(pair) for pair in learned["merges"]],
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=list(special),
        clean_up_tokenization_spaces=False,
        **settings,
    )


def build_tiny_model(
    path: Path,
    *,
    seed: int,
    hidden_size: int = 128,
    num_layers: int = 3,
    num_heads: int = 4,
    intermediate_size: int = 384,
    max_position_embeddings: int = 256,
    words: Sequence[str] = (),
) -> Path:
    """Write a model of random weights and its tokenizer into `path`, made if it is missing; returns `path`.

    Args:
        path: the model folder.
        seed: of the weights; the same seed gives the same bytes.
        hidden_size: `num_heads` x head size; vLLM serves no head size below 32 on a CPU.
        num_layers: transformer layers; 3 of 128 are 0.7 million parameters.
        max_position_embeddings: longest sequence, in tokens.
        words: of the tokenizer; see `build_tiny_tokenizer`.
    """
    tokenizer = build_tiny_tokenizer(words)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        max_position_embeddings=max_position_embeddings,
        # Without a small rotary base and wide initial weights so small a model does not learn arithmetic.
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        initializer_range=0.06,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config).float()
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
