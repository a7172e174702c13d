"""A tiny random LLaVA and its processor, and images for it: an ordinary model folder that looks at images."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import (
    CLIPVisionConfig,
    GenerationConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.tiny_config import tiny_config
from trainers.models.tiny_model import build_tiny_tokenizer

IMAGE = "<|image|>"
SIDE, PATCH = 28, 14
"""Pixels of an image's side and of a patch's: an image takes four tokens."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|assistant|>' if message['role'] == 'assistant' else '<|user|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{{ '<|image|>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}{% endif %}"
    "{{ '<|eos|>' if message['role'] == 'assistant' else '' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tiny_vision_model(path: Path) -> Path:
    """Write the model of random weights, its tokenizer and its processor into `path`; returns `path`."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.add_tokens([IMAGE], special_tokens=True)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = tiny_config(
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        initializer_range=0.06,
        tie_word_embeddings=True,
        **ids,
    )
    vision = CLIPVisionConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=1,
        image_size=SIDE,
        patch_size=PATCH,
        projection_dim=32,
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE),
        image_seq_length=(SIDE // PATCH) ** 2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlavaForConditionalGeneration(config).float()
        # As it is initialised, an image would hardly change what follows.
        model.model.multi_modal_projector.linear_2.weight.data.normal_(0, 0.5)
    model.generation_config = GenerationConfig(**ids, do_sample=True)
    model.save_pretrained(path)
    LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token=IMAGE,
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(path)
    return path


def png(seed: int, side: int = 40) -> bytes:
    """The bytes of an image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def pixels(data: bytes) -> Image.Image:
    """An image of its bytes."""
    return Image.open(io.BytesIO(data)).convert("RGB")
