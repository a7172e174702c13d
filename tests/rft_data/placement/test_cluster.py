"""Arithmetic of roles against nodes, GPUs and this machine."""

import os

import pytest

from rft_data.core.errors import RecipeError
from rft_data.core.gpus import visible_devices
from rft_data.core.roles import RoleSpec
from rft_data.placement import machine
from rft_data.placement.cluster import lacking, never_fits, role_resources
from rft_data.placement.devices import Devices


def role(name: str, cpus: float = 1.0, gpus: float = 0.0) -> RoleSpec:
    return RoleSpec(name, "toy:toy", {}, cpus, gpus)


def test_roles_that_fit_are_not_refused() -> None:
    nodes = [{"CPU": 2.0}, {"CPU": 2.0, "GPU": 1.0}]
    assert never_fits([role("a", 2), role("b", 1, 0.5), role("c", 1, 0.5)], nodes) is None
    assert never_fits([], []) is None


def test_roles_that_need_more_than_all_nodes_are_refused_with_a_table() -> None:
    refusal = never_fits([role("explorer-0"), role("trainer", 2, 1)], [{"CPU": 2.0, "memory": 1e9}])
    assert refusal is not None
    assert "too few CPUs; too few GPUs; no node is large enough for 'trainer'" in refusal
    rows = [line.split() for line in refusal.splitlines()]
    assert ["trainer", "2", "1"] in rows
    assert ["needed", "together", "3", "1"] in rows
    assert ["available", "on", "1", "nodes", "2", "0"] in rows


def test_a_role_larger_than_every_node_is_refused_though_all_nodes_together_have_enough() -> None:
    refusal = never_fits([role("trainer", 3)], [{"CPU": 2.0}, {"CPU": 2.0}])
    assert refusal is not None
    assert "(no node is large enough for 'trainer')" in refusal


def test_what_a_cluster_lacks_is_shown_by_role_and_resource() -> None:
    asked = [role("explorer-0", 1, 1), role("trainer", 4)]
    rows = [line.split() for line in lacking(asked, [{"CPU": 2.0}, {"CPU": 1.0, "memory": 1e9}]).splitlines()]
    assert rows == [
        ["CPUs", "asked", "have", "missing", "GPUs", "asked", "have", "missing"],
        ["explorer-0", "1", "2", "0", "1", "0", "1"],
        ["trainer", "4", "2", "2", "0", "0", "0"],
        ["together,", "on", "2", "nodes", "5", "3", "2", "1", "0", "1"],
    ]
    assert "GPU" not in lacking([role("trainer", 4)], [])


def test_a_part_of_more_than_one_gpu_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'a' asks for 1.5 GPUs; wanted is a whole number"):
        role_resources(role("a", 1, 1.5))
    assert role_resources(role("a", 0, 0)) == {}


def test_small_shares_are_put_together_so_that_whole_gpus_stay() -> None:
    devices = Devices(["0", "1"])
    assert devices.reserve("a", 0.3) == ["0"]
    assert devices.reserve("b", 0.7) == ["0"]
    assert devices.reserve("c", 1) == ["1"]
    assert devices.reserve("d", 0) == []
    with pytest.raises(RecipeError, match=r"'e' needs 0.1 GPUs; this machine shows 2 .*'b' has 0.7 of GPU 0"):
        devices.reserve("e", 0.1)
    devices.release("b")
    devices.release("b")
    assert devices.reserve("e", 0.7) == ["0"]


def test_a_check_does_not_depend_on_the_order_of_roles() -> None:
    Devices(["0", "1"]).check({"half": 0.5, "whole": 1.0, "other half": 0.5})
    with pytest.raises(RecipeError):
        Devices(["0", "1"]).check({"half": 0.5, "whole": 1.0, "most": 0.6})


@pytest.mark.parametrize(
    ("named", "seen"), [("", []), ("-1", []), ("2, 3", ["2", "3"]), ("GPU-a,MIG-b", ["GPU-a", "MIG-b"])]
)
def test_visible_devices_are_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch, named: str, seen: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_devices() == seen


def test_without_a_name_nvidia_smi_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert visible_devices() == []
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nprintf '0\\n1\\n'\n")
    tool.chmod(0o755)
    assert visible_devices() == ["0", "1"]
    tool.write_text("#!/bin/sh\necho no driver\nexit 9\n")
    assert visible_devices() == []


def test_a_machine_that_is_too_small_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_count", lambda: 2)
    monkeypatch.setattr(machine, "free_bytes", lambda: 3 << 30)
    assert machine.warnings_for([role("a"), role("b")]) == []
    cpus, memory = machine.warnings_for([role("a"), role("b"), role("c"), role("d")])
    assert "the roles ask for 4 CPUs (a: 1, b: 1, c: 1, d: 1); this machine has 2" in cpus
    assert "3.0 GiB of memory are free for 4 roles" in memory


def test_this_machine_says_what_it_has() -> None:
    assert machine.cpu_count() == len(os.sched_getaffinity(0))
    free = machine.free_bytes()
    assert free is not None
    page = os.sysconf("SC_PAGE_SIZE")
    unused, all_of_it = (page * os.sysconf(name) for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"))
    assert unused / 2 < free < all_of_it  # what caches hold counts too


def test_roles_of_a_group_use_the_same_gpus_until_the_last_of_them_ends() -> None:
    devices = Devices(["0", "1", "2"])
    assert devices.reserve("explorer-0", 2, "colocated") == devices.reserve("trainer", 2, "colocated")
    devices.release("explorer-0")
    with pytest.raises(RecipeError, match="'other' needs 2 GPUs"):
        devices.reserve("other", 2)
    devices.release("trainer")
    assert len(devices.reserve("other", 3)) == 3
