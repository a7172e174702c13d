"""The files that `accelerate launch` is given: accelerate reads them, and they let weights be published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser

FOLDER = Path(__file__).parents[3] / "recipes" / "accelerate"
FILES = ["fsdp2", "deepspeed_zero2", "deepspeed_zero3"]


def read(name: str) -> Any:
    return load_config_from_file(str(FOLDER / f"{name}.yaml"))


def test_there_is_no_file_without_a_test() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.yaml")) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_file_names_only_options_that_accelerate_has(name: str) -> None:
    config = read(name)
    known = set(vars(launch_command_parser().parse_args(["script.py"])))
    assert config.fsdp_config.keys() | config.deepspeed_config.keys() <= known
    assert config.mixed_precision == "bf16"


def test_sharded_weights_can_be_gathered() -> None:
    assert read("fsdp2").fsdp_config["fsdp_version"] == 2
    assert read("fsdp2").fsdp_config["fsdp_state_dict_type"] == "FULL_STATE_DICT"
    assert read("deepspeed_zero3").deepspeed_config["zero3_save_16bit_model"] is True
