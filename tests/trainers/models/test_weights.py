"""Weight directories: the probe is what an independent forward of the written model gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rft_data.core.errors import MissingFileError
from rft_data.weights.probe import Probe
from trainers.models.weights import publishable


def independent_logprobs(directory: Path, token_ids: tuple[int, ...]) -> np.ndarray:
    """Token by token: the logprob of each id after the ones before it, float64."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64).eval()
    out = [0.0]
    for end in range(1, len(token_ids)):
        logits = model(torch.tensor([token_ids[:end]])).logits[0, -1]
        out.append(float((logits - torch.logsumexp(logits, 0))[token_ids[end]].detach()))
    return np.array(out, dtype=np.float32)


@pytest.mark.slow
def test_published_probe_agrees_with_an_independent_forward(model_path: Path, tmp_path: Path) -> None:
    publishable(model_path, tmp_path)
    probe = Probe.load(tmp_path)
    measured = [independent_logprobs(tmp_path, ids) for ids in probe.token_ids]
    assert probe.check(measured, 1e-5, "test") < 1e-5
    assert [len(ids) for ids in probe.token_ids] == [24, 24]
    assert all(lp.shape == (24,) and lp[0] == 0.0 and (lp[1:] < 0).all() for lp in probe.logprobs)


@pytest.mark.slow
def test_probe_ids_are_the_same_each_time_and_never_special(model_path: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        publishable(model_path, tmp_path / name)
    first, second = Probe.load(tmp_path / "a"), Probe.load(tmp_path / "b")
    assert first.token_ids == second.token_ids
    special = set(AutoTokenizer.from_pretrained(model_path).all_special_ids)
    assert special
    assert not special & {i for ids in first.token_ids for i in ids}


@pytest.mark.slow
def test_published_model_has_the_bytes_of_the_source(model_path: Path, tmp_path: Path) -> None:
    publishable(model_path, tmp_path)
    want = AutoModelForCausalLM.from_pretrained(model_path).state_dict()
    got = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert want.keys() == got.keys()
    assert all(torch.equal(want[name], got[name]) for name in want)


def test_publishable_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"there is no model folder '.*nowhere'"):
        publishable(tmp_path / "nowhere", tmp_path)
