"""Which ways of the weights a recipe may name, and what `auto` is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rft_data.core.errors import RecipeError
from rft_data.recipe import load_recipe
from rft_data.recipe.explain import explain
from rft_data.recipe.online import OnlineRecipe
from rft_data.recipe.running import PlacementSection
from rft_data.recipe.sections import EngineSection
from rft_data.recipe.transports import named_way, with_usual_way
from tests.rft_data.run.test_online import write_recipe

OWN_GPUS = ["placement.explorers.gpus=1", "placement.trainer.gpus=1"]
ONE_GPU = ["placement.explorers={count: 2, gpus: 0.5}", "explorer.engine.use=vllm"]

IN_TURNS = ["placement.use=local", *OWN_GPUS, "placement.colocate=true", "explorer.engine.use=vllm"]
ROUTED = ["explorer.engine.use=routed", "explorer.engine.options={engines: [{use: transformers}]}"]


def gpus(each: int) -> dict[str, Any]:
    """GPUs of explorers and trainer."""
    return {"explorers": {"gpus": each}, "trainer": {"gpus": each}}


@pytest.mark.parametrize(
    ("use", "changes", "refusal"),
    [
        ("ray", ["placement.use=local"], "needs 'placement.use: ray', found 'local'; use 'shm'"),
        ("gloo", [], "sends weights to other processes, and with 'placement.use: inline' there are none"),
        ("gloo", ["placement.use=local"], ""),
        ("gloo", ["placement.use=local", *ROUTED], "one engine per explorer"),
        ("nccl", ["placement.use=local"], "GPUs of their own, .* 'placement.explorers.gpus' is 0"),
        ("nccl", ["placement.use=local", OWN_GPUS[0]], "'placement.trainer.gpus' is 0; give both 1 or more"),
        ("nccl", ["placement.use=local", *OWN_GPUS], ""),
        ("nccl", [*IN_TURNS, "sync={every: 1, max_staleness: 0}"], "with 'placement.colocate' .* share them"),
        ("nccl", ["placement.use=ray", *OWN_GPUS], ""),
        ("nccl", ["placement.use=ray", OWN_GPUS[0]], "'placement.trainer.gpus' is 0; .* use 'gloo' or 'ray'"),
        ("nccl", ["placement.use=ray", *OWN_GPUS, *ROUTED], "one engine per explorer"),
        ("ipc", ["placement.use=ray", *ONE_GPU], "on Ray no explorer shares a GPU .* use 'nccl', 'ray' or"),
        ("ipc", ["placement.use=local"], "memory of one GPU .* asks for 0 in all"),
        ("ipc", ["placement.use=local", *ONE_GPU], ""),
        ("ipc", ["placement.use=local", ONE_GPU[0]], "only the engine 'vllm' takes, found 'transformers'"),
    ],
)
def test_way_that_the_placement_cannot_go_is_refused(
    tmp_path: Path, use: str, changes: list[str], refusal: str
) -> None:
    recipe, changed = write_recipe(tmp_path), [f"explorer.engine.transport.use={use}", *changes]
    if not refusal:
        load_recipe(recipe, changed)
        return
    with pytest.raises(RecipeError, match=rf"'explorer.engine.transport' is '{use}', .*{refusal}"):
        load_recipe(recipe, changed)


@pytest.mark.parametrize(
    ("place", "engine", "use"),
    [
        ({"use": "inline"}, "transformers", "directory"),
        ({"use": "local"}, "transformers", "shm"),
        ({"use": "ray"}, "vllm", "ray"),
        ({"use": "ray", **gpus(1)}, "vllm", "nccl"),
        ({"use": "ray", **gpus(2)}, "vllm", "nccl"),
        ({"use": "ray", "explorers": {"gpus": 1}}, "vllm", "ray"),
        ({"use": "ray", "explorers": {"count": 2, "gpus": 0.5}, "trainer": {"gpus": 1}}, "vllm", "ray"),
        ({"use": "local", "explorers": {"gpus": 1}, "trainer": {"gpus": 1}}, "transformers", "nccl"),
        ({"use": "local", "explorers": {"count": 2, "gpus": 0.5}}, "vllm", "ipc"),
        ({"use": "local", "explorers": {"count": 2, "gpus": 0.5}}, "transformers", "shm"),
        ({"use": "local", "explorers": {"count": 3, "gpus": 0.5}}, "vllm", "shm"),
        ({"use": "local", "colocate": True, **gpus(1)}, "vllm", "ipc"),
        ({"use": "local", "colocate": True, **gpus(2)}, "vllm", "shm"),
        ({"use": "local", "colocate": True}, "vllm", "shm"),
    ],
)
def test_auto_is_what_fits_the_placement(place: dict[str, Any], engine: str, use: str) -> None:
    section = EngineSection.model_validate({"use": engine, "transport": {"use": "auto"}})
    assert named_way(section, PlacementSection.model_validate(place))[0] == use


@pytest.mark.parametrize(("place", "use"), [("inline", "directory"), ("local", "directory"), ("ray", "ray")])
def test_default_is_the_folder_where_all_see_it_and_auto_with_ray(
    tmp_path: Path, place: str, use: str
) -> None:
    file, change = write_recipe(tmp_path), [f"placement.use={place}"]
    recipe = load_recipe(file, change)
    assert isinstance(recipe, OnlineRecipe)
    found, why = named_way(recipe.explorer.engine, recipe.placement)
    assert found == use
    said = [line for line in explain(file, change) if line.startswith("# weights reach")]
    assert said == ([] if place == "inline" else [f"# weights reach the explorers by '{use}': {why}"])


@pytest.mark.slow
def test_auto_between_gpus_on_ray_says_from_where_and_stays_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, change = write_recipe(tmp_path), ["placement.use=ray", *OWN_GPUS]
    [said] = [line for line in explain(file, change) if line.startswith("# weights reach")]
    assert "by 'nccl': explorers and trainer have GPUs of their own; it is sent from the run's node" in said
    monkeypatch.setenv("RAY_USE_TLS", "1")
    [said] = [line for line in explain(file, change) if line.startswith("# weights reach")]
    assert "by 'ray': Ray is encrypted here (RAY_USE_TLS)" in said
    load_recipe(file, [*change, "explorer.engine.transport.use=nccl"])


def test_an_endpoint_on_ray_is_given_no_transport_which_it_would_refuse() -> None:
    tree = {"explorer": {"engine": {"use": "openai"}}, "placement": {"use": "ray"}}
    assert with_usual_way(tree) == tree
    weights = with_usual_way({**tree, "explorer": {"engine": {"use": "vllm"}}})
    assert weights == {**tree, "explorer": {"engine": {"use": "vllm", "transport": {"use": "auto"}}}}
