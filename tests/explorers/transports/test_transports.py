"""Every way weights reach an engine: they arrive whole, damage is refused, nothing stays behind."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from explorers.transports import TRANSPORTS, group, make_transport
from explorers.transports.arrival import Arrived, tensors_in_bytes
from explorers.transports.directory import Directory
from explorers.transports.group_sender import GroupSender
from explorers.transports.shm import SharedMemory
from explorers.transports.tensor_sources import open_source
from rft_data.core.errors import (
    DiskFullError,
    EngineError,
    IntegrityError,
    RecipeError,
    StalledError,
    UnknownComponentError,
)
from rft_data.core.lookup import load
from rft_data.core.rows import WeightRef
from rft_data.weights.probe import PROBE_FILE
from tests.explorers.engines.test_adapter_versions import adapter_ref
from tests.rays import ray_for
from tests.waiting import wait_for

TRANSFER = "explorers.transports.transfer:"
"""vLLM's own weight transfer, by import path."""


def same_as_published(arrived: Arrived, ref: WeightRef) -> bool:
    """Whether a transport brought the published tensors and probe, bit for bit."""
    want = load_file(Path(ref.path) / "model.safetensors")
    found = dict(open_source(arrived.source))
    return (
        found.keys() == want.keys() == arrived.tensors.keys()
        and all(torch.equal(found[name], want[name]) for name in want)
        and arrived.probe.token_ids[0][:2] == (5, 6)
    )


def damaged(ref: WeightRef, name: str = "model.safetensors") -> WeightRef:
    file = Path(ref.path) / name
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data)
    return ref


# --- by name ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_named_transport_exists() -> None:
    for name, path in TRANSPORTS.items():
        assert callable(load(path, name))


def test_a_transport_is_made_from_its_name_and_arguments(tmp_path: Path) -> None:
    assert isinstance(make_transport(), Directory)
    assert isinstance(make_transport("shm", root=str(tmp_path)), SharedMemory)
    assert isinstance(make_transport("explorers.transports.directory:Directory"), Directory)
    with pytest.raises(UnknownComponentError, match="did you mean 'directory'"):
        make_transport("directry")
    with pytest.raises(RecipeError, match="'shm' does not take"):
        make_transport("shm", folder="x")


def test_vllms_transfers_are_refused_by_the_transformers_engine(tied: Any) -> None:
    from explorers.engines.transformers_engine import TransformersEngine

    with pytest.raises(RecipeError, match="use directory, shm or ray"):
        TransformersEngine(
            tied.base, seed=0, max_model_len=64, options={}, transport={"use": "ipc", "host": "h", "port": 1}
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_tensors_are_read_from_bytes_in_any_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "b": (torch.arange(12).reshape(3, 4) % 5).to(dtype),
        "a": torch.ones((), dtype=dtype),
        "none": torch.empty((0, 3), dtype=dtype),
    }
    save_file(tensors, tmp_path / "t.safetensors", metadata={"format": "pt"})
    found = dict(tensors_in_bytes(np.fromfile(tmp_path / "t.safetensors", dtype=np.uint8)))
    assert {name: (t.dtype, t.tolist()) for name, t in found.items()} == {
        name: (dtype, t.tolist()) for name, t in tensors.items()
    }


# --- shared memory ---------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "shm"


def folders(memory: Path) -> list[str]:
    return sorted(p.name for p in memory.glob("*/*/v????????"))


@pytest.mark.slow
def test_shared_memory_brings_what_was_published_and_leaves_nothing(tied: Any, memory: Path) -> None:
    transport = SharedMemory(str(memory))
    for name in ("a", "b"):
        ref = tied.ref(name)
        with transport.fetch(ref) as arrived:
            assert same_as_published(arrived, ref)
            assert str(memory) in arrived.source["path"]
    transport.close()
    transport.close()
    assert not [p for p in memory.rglob("*") if p.is_file()]


@pytest.mark.slow
def test_engines_of_a_node_share_one_copy_and_older_ones_go_once_unread(
    tied: Any, memory: Path, in_threads: Callable[..., list[Any]]
) -> None:
    transports = [SharedMemory(str(memory)) for _ in range(4)]
    first, second, third = (tied.ref(name) for name in "aba")
    reading = in_threads(lambda transport: transport.fetch(first), transports)
    assert len({arrived.source["path"] for arrived in reading}) == 1
    inode = (Path(reading[0].source["path"]) / "model.safetensors").stat().st_ino
    with transports[0].fetch(first) as again:
        assert (Path(again.source["path"]) / "model.safetensors").stat().st_ino == inode
    with transports[0].fetch(second):
        assert folders(memory) == ["v00000000", "v00000001"]  # the first is still being read
    for arrived in reading:
        arrived.done(None)
    with transports[1].fetch(third) as arrived:
        assert folders(memory) == ["v00000002"]
        assert same_as_published(arrived, third)
    for transport in transports:
        transport.close()
    assert folders(memory) == []


@pytest.mark.slow
def test_damage_is_found_while_copying_to_shared_memory(tied: Any, memory: Path) -> None:
    transport = SharedMemory(str(memory))
    with pytest.raises(IntegrityError, match="does not match the digest"):
        transport.fetch(damaged(tied.ref("a")))
    gone = tied.ref("a")
    (Path(gone.path) / PROBE_FILE).unlink()
    with pytest.raises(IntegrityError, match="is missing"):
        transport.fetch(gone)
    assert folders(memory) == []
    with transport.fetch(good := tied.ref("a")) as arrived:
        assert same_as_published(arrived, good)
    transport.close()


@pytest.mark.slow
def test_a_copy_of_other_weights_under_the_same_number_is_not_served(tied: Any, memory: Path) -> None:
    transport = SharedMemory(str(memory))
    ref = tied.ref("a")
    transport.fetch(ref).done(None)
    other = tied.ref("b")
    again = Path(other.path).rename(Path(other.path).with_name("again"))
    manifest = json.loads((again / "manifest.json").read_text()) | {"version": ref.version}
    (again / "manifest.json").write_text(json.dumps(manifest))
    with transport.fetch(dataclasses.replace(ref, path=str(again))) as arrived:
        assert same_as_published(arrived, dataclasses.replace(ref, path=str(again)))
    transport.close()


@pytest.mark.slow
def test_what_a_killed_run_left_in_shared_memory_goes_with_the_next(tied: Any, memory: Path) -> None:
    ref = tied.ref("a")
    script = (
        "import os, signal, sys; from explorers.transports.shm import SharedMemory; "
        "from rft_data.core.rows import WeightRef; "
        f"t = SharedMemory({str(memory)!r}); t.fetch(WeightRef('gone', 0, 0, sys.argv[1])); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    manifest = Path(ref.path) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"run_id": "gone"}))
    subprocess.run([sys.executable, "-c", script, ref.path], check=False)
    (left,) = memory.glob("*/*/v????????")
    live = SharedMemory(str(memory))
    live.fetch(tied.ref("b")).done(None)
    assert not left.exists()
    other = SharedMemory(str(memory))
    other.fetch(WeightRef("gone", 0, 0, ref.path)).done(None)
    assert len(folders(memory)) == 2  # a live run's folder is left alone
    live.close()
    other.close()


@pytest.mark.slow
def test_a_full_shared_memory_says_so_and_keeps_nothing(
    tied: Any, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    full = shutil.disk_usage(tied.base)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    with pytest.raises(DiskFullError, match=r"1,000 bytes are free and .* use the transport 'directory'"):
        SharedMemory(str(memory)).fetch(tied.ref("a"))
    assert folders(memory) == []


@pytest.mark.slow
def test_a_copy_that_never_ends_is_waited_for_until_the_deadline(tied: Any, memory: Path) -> None:
    transport = SharedMemory(str(memory), deadline_s=0.2)
    ref = tied.ref("a")
    transport.fetch(ref).done(None)
    (copy,) = memory.glob("*/*/v????????")
    lock = os.open(copy.with_name(f"{copy.name}.lock"), os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(StalledError, match=r"waited 0\.2 s for another engine of this node"):
        transport.fetch(ref)
    os.close(lock)
    transport.close()


@pytest.mark.slow
def test_an_engine_serves_what_shared_memory_brought(tied: Any, memory: Path) -> None:
    from explorers.engines.transformers_engine import TransformersEngine

    shared = {"use": "shm", "root": str(memory)}
    engine = TransformersEngine(tied.base, seed=0, max_model_len=64, options={}, transport=shared)
    assert engine.load_weights(tied.ref("a")) <= 1e-4
    ref = tied.ref("b")
    assert asyncio.run(engine.swap_weights(ref)) <= 1e-4
    assert engine.version == ref.version
    with pytest.raises(IntegrityError, match="does not match the digest"):
        asyncio.run(engine.swap_weights(damaged(tied.ref("a"))))
    assert engine.version == ref.version
    engine.close()
    assert folders(memory) == []


# --- Ray's object store ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with ray_for(num_cpus=2, object_store_memory=128 << 20, log_to_driver=False) as started:
        yield started


@pytest.mark.heavy
def test_rays_object_store_brings_what_was_published(tied: Any, ray: Any) -> None:
    from explorers.engines.transformers_engine import TransformersEngine
    from explorers.transports.ray_store import RaySender, RayStore

    sender, transport = RaySender("weights"), RayStore("weights", deadline_s=60)
    first, second, third = (tied.ref(name) for name in "aba")
    for ref in (first, second, third):
        sender.offer(ref)
    with transport.fetch(third) as arrived:
        assert same_as_published(arrived, third)
    with pytest.raises(EngineError, match="does not hold version 0; offer it"):
        transport.fetch(first)
    stored = {"use": "ray", "actor": "weights", "deadline_s": 60}
    engine = TransformersEngine(tied.base, seed=0, max_model_len=64, options={}, transport=stored)
    assert asyncio.run(engine.swap_weights(second)) <= 1e-4
    adapter, _ = adapter_ref(tied)
    sender.offer(adapter)
    assert asyncio.run(engine.swap_weights(adapter)) <= 1e-4
    broken = damaged(tied.ref("b"))
    sender.offer(broken)
    message = r"'model.safetensors' of version 4 did not arrive by 'ray'"
    with pytest.raises(IntegrityError, match=message):
        asyncio.run(engine.swap_weights(broken))
    assert engine.version == adapter.version
    engine.close()
    sender.close()
    with pytest.raises((EngineError, StalledError), match="weights"):
        RayStore("weights", deadline_s=5).fetch(third)


# --- broadcast by a group ------------------------------------------------------------------------------


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[GroupSender]:
    monkeypatch.setattr(group, "STEP_S", 2.0)  # of a group with a dead member
    made = GroupSender("gloo", "127.0.0.1", gather_s=30.0)
    yield made
    made.close()


def of_group(sender: GroupSender, *names: str, deadline_s: float = 60.0) -> list[Any]:
    return [group.gloo(sender.host, sender.port, name, deadline_s) for name in names]


@pytest.mark.slow
def test_a_group_gets_what_was_published_at_once_and_a_restarted_engine_alone(
    tied: Any, sender: GroupSender
) -> None:
    sender.offer(tied.ref("a"), ["gone"])  # it never asks, and holds up nobody
    first, second = tied.ref("a"), tied.ref("b")
    both = of_group(sender, "one", "two")
    for ref in (first, second):
        sender.offer(ref, ["one", "two"])
        with ThreadPoolExecutor() as pool:
            early = pool.submit(both[0].fetch, ref)
            wait_for(lambda ref=ref: sender._store.check([group.asked_key("one", ref.version)]))
            time.sleep(10 * group.LOOK_S)  # the sender has seen it, and waits for the other
            arrived = [both[1].fetch(ref), early.result()]
        assert all(same_as_published(one, ref) for one in arrived)
        held = [path for one in arrived for path in one.source["files"].values()]
        assert all(map(os.path.exists, held))
        for one in arrived:
            one.done(None)
        assert not any(map(os.path.exists, held))
    assert sender._groups == 2, "one broadcast of each"
    sender.offer(second, ["one"])
    [restarted] = of_group(sender, "one")
    with restarted.fetch(second) as arrived:
        assert same_as_published(arrived, second)
    adapter, _ = adapter_ref(tied)
    sender.offer(adapter, ["two"])
    with both[1].fetch(adapter) as arrived:
        assert "base" in arrived.source, "it is merged where it is used"


@pytest.mark.slow
def test_a_group_without_one_of_its_members_is_made_again(
    tied: Any, sender: GroupSender, caplog: pytest.LogCaptureFixture
) -> None:
    ref = tied.ref("a")
    [alive, dying] = of_group(sender, "alive", "dying")
    dying._received = lambda answer: pytest.fail("it was killed")
    sender._gather_s = 1.0
    sender.offer(ref, ["alive", "dying"])
    with ThreadPoolExecutor() as pool:
        gone = pool.submit(dying.fetch, ref)
        with alive.fetch(ref) as arrived:
            assert same_as_published(arrived, ref)
        assert gone.exception() is not None
    assert "did not reach all of alive, dying" in caplog.text
    assert "version 0 is asked for again" in caplog.text


@pytest.mark.slow
def test_an_explorer_that_reaches_no_other_costs_them_one_try_and_no_later_version(
    tied: Any, sender: GroupSender, caplog: pytest.LogCaptureFixture
) -> None:
    """It asks, as its way to the store is open, and then waits for a group that does not come together."""
    *others, lost = of_group(sender, "one", "two", "lost")
    lost._received = lambda answer: type(lost)._received(lost, {**answer, "group": "elsewhere"})
    first, second = tied.ref("a"), tied.ref("b")

    def all_others_get(ref: WeightRef) -> bool:
        found = list(pool.map(lambda one: one.fetch(ref), others))
        return all(same_as_published(arrived, ref) for arrived in found)

    with ThreadPoolExecutor() as pool:
        sender.offer(first, ["one", "two", "lost"])
        failing = pool.submit(lost.fetch, first)
        assert all_others_get(first)
        sender.offer(second, ["one", "two"])
        assert all_others_get(second)
        assert not failing.done(), "it still asks"
        lost.close()
        assert isinstance(failing.exception(), StalledError)
    assert caplog.text.count("did not reach all of one, two, lost") == 1
    assert "explorers one, two, lost live, but do not all reach each other" in caplog.text
    [again] = of_group(sender, "one")  # as if it was started on another node
    sender.offer(third := tied.ref("a"), ["one", "two"])
    with ThreadPoolExecutor() as pool:
        assert all(
            same_as_published(one, third) for one in pool.map(lambda t: t.fetch(third), [again, others[1]])
        )
    assert "one" not in sender._alone


@pytest.mark.slow
def test_a_group_refuses_damage_and_says_what_it_cannot_have(tied: Any, sender: GroupSender) -> None:
    [one] = of_group(sender, "one")
    broken, gone = damaged(tied.ref("a")), tied.ref("b")
    sender.offer(broken, ["one"])
    with pytest.raises(IntegrityError, match=r"'model.safetensors' of version 0 did not arrive by 'memory'"):
        one.fetch(broken)
    (Path(gone.path) / "manifest.json").unlink()
    sender.offer(gone, ["one"])
    with pytest.raises(EngineError, match=r"version 1 could not be sent: .* has no manifest\.json"):
        one.fetch(gone)
    empty = tied.ref("a")
    (Path(empty.path) / "model.safetensors").write_bytes(b"")
    sender.offer(empty, ["one"])
    with pytest.raises(EngineError, match=r"could not be sent: .*model\.safetensors is empty"):
        one.fetch(empty)
    [late] = of_group(sender, "late", deadline_s=0.1)
    with pytest.raises(StalledError, match=r"did not offer version 0 to 'late' within 0\.1 s"):
        late.fetch(broken)


# --- vLLM's own weight transfer ------------------------------------------------------------------------


@pytest.mark.heavy
def test_gloo_sends_to_vllm_engines_in_other_processes(tied: Any, tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    from explorers.transports.sender import WeightSender

    refs = [tied.ref(name) for name in "ab"]
    sender = WeightSender("gloo", receivers=1, deadline_s=120)
    order = {
        "model": str(tied.base),
        "transport": {
            "use": TRANSFER + "gloo",
            "host": "127.0.0.1",
            "port": sender.port,
            "deadline_s": 120,
        },
        "refs": [dataclasses.asdict(ref) for ref in refs],
        "prompt": list(range(5, 15)),
    }
    child = Path(__file__).with_name("transfer_child.py")
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(
            subprocess.run,
            [sys.executable, str(child)],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            timeout=240,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        )
        for ref in refs:
            sender.offer(ref).result()
        done = playing.result()
    sender.close()
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["version"] for one in told] == [ref.version for ref in refs]
    for name, one in zip("ab", told, strict=True):
        assert one["difference"] <= 1e-4
        table = tied.logprobs(name, [*order["prompt"], *one["token_ids"]])[9:-1]
        want = table.gather(-1, torch.tensor(one["token_ids"])[:, None])[:, 0]
        assert float((want - torch.tensor(one["logprobs"])).abs().max()) <= 1e-4


@pytest.mark.slow
def test_a_sender_gives_up_on_engines_that_never_come() -> None:
    pytest.importorskip("vllm")
    from explorers.transports.sender import _StoreClient, dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = _StoreClient(store, version=3, generation=0, receivers=2, deadline_s=0.1)
    with pytest.raises(StalledError, match="0 of 2 engines have loaded version 3"):
        client.update_weights({})
    store.add("done/0/3", 2)
    store.set("failed/0/3", "ParityError: no")
    with pytest.raises(EngineError, match="could not load version 3: ParityError: no"):
        client.update_weights({})


def test_an_engine_waits_for_an_offer_until_its_deadline() -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    transport = make_transport(TRANSFER + "gloo", host="127.0.0.1", port=store.port, deadline_s=0.2)
    with pytest.raises(StalledError, match=r"did not offer 'offer/4' within 0\.2 s"):
        transport.fetch(WeightRef("run", 4, 0, "/nowhere"))


@pytest.mark.slow
def test_an_engine_too_many_is_refused(tied: Any) -> None:
    import base64

    import torch.distributed as dist

    ref = tied.ref("a")
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    probe = base64.b64encode((Path(ref.path) / PROBE_FILE).read_bytes()).decode()
    manifest = (Path(ref.path) / "manifest.json").read_text()
    offer = {"generation": 0, "receivers": 1, "manifest": manifest, "probe": probe}
    store.set(f"offer/{ref.version}", json.dumps(offer))
    store.set("init/0", json.dumps({"rank_offset": 1}))
    first, second = (
        make_transport(TRANSFER + "nccl", host="127.0.0.1", port=store.port, deadline_s=5) for _ in "ab"
    )
    arrived = first.fetch(ref)
    assert arrived.source["init"] == {"rank_offset": 1}
    assert arrived.source["update"]["names"] == sorted(arrived.tensors)
    with pytest.raises(EngineError, match="counts 1 engines, and this is one more"):
        second.fetch(ref)
    store.set("offer/99", json.dumps(offer))
    with pytest.raises(IntegrityError, match="wanted the weights of"):
        first.fetch(dataclasses.replace(ref, version=99))


@pytest.mark.slow
def test_vllms_transfer_classes_are_as_we_use_them(tied: Any) -> None:
    """NCCL and IPC cannot run without a GPU; their names, fields and calls can be compared."""
    pytest.importorskip("vllm")
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer import base
    from vllm.distributed.weight_transfer.factory import (
        WeightTransferEngineFactory,
        WeightTransferTrainerFactory,
    )
    from vllm.distributed.weight_transfer.ipc_engine import (
        IPCTrainerInitInfo,
        IPCWeightTransferInitInfo,
        IPCWeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.nccl_engine import (
        NCCLTrainerInitInfo,
        NCCLWeightTransferInitInfo,
        NCCLWeightTransferUpdateInfo,
    )
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.worker.gpu_worker import Worker

    from explorers.transports import gloo
    from explorers.transports.sender import DirectorySource, WeightSender, _StoreClient
    from explorers.transports.transfer import update_info

    gloo.register_engine()
    gloo.register_trainer()
    for name in ("nccl", "ipc", "gloo"):
        assert name in WeightTransferEngineFactory._registry
        assert name in WeightTransferTrainerFactory._registry
        assert WeightTransferConfig(backend=name).backend == name
    assert "weight_transfer_config" in {field.name for field in dataclasses.fields(EngineArgs)}
    for call in (
        "init_weight_transfer_engine",
        "start_weight_update",
        "update_weights",
        "finish_weight_update",
    ):
        assert callable(getattr(Worker, call))
    assert isinstance(_StoreClient(None, 0, 0, 1, 1.0), base.VLLMWeightSyncClient)

    ref = tied.ref("a")
    arrived = Directory().fetch(ref)
    info = update_info(arrived.tensors)
    source = DirectorySource(Path(ref.path), "cpu")
    metadata = source.metadata()
    assert NCCLWeightTransferUpdateInfo(**info).names == [entry.name for entry in metadata]
    assert info["shapes"] == [list(entry.shape) for entry in metadata]
    assert [f"torch.{name}" for name in info["dtype_names"]] == [str(entry.dtype) for entry in metadata]
    assert [(name, tuple(tensor.shape)) for name, tensor in source] == [(m.name, m.shape) for m in metadata]

    sender = WeightSender("nccl", receivers=3, deadline_s=1)
    nccl = sender._init_info()
    assert isinstance(nccl, NCCLTrainerInitInfo)
    assert (nccl.rank, nccl.world_size, nccl.packed) == (0, 4, True)
    worker = NCCLWeightTransferInitInfo(
        master_address=nccl.master_address, master_port=nccl.master_port, rank_offset=1, world_size=4
    )
    assert json.loads(json.dumps(dataclasses.asdict(worker)))["rank_offset"] == 1
    sender.close()
    sender = WeightSender("ipc", receivers=1, deadline_s=1)
    assert isinstance(sender._init_info(), IPCTrainerInitInfo)
    sender.close()
    assert [field.name for field in dataclasses.fields(IPCWeightTransferInitInfo)] == ["packed"]
    assert {"names", "dtype_names", "shapes", "ipc_handles"} <= {
        field.name for field in dataclasses.fields(IPCWeightTransferUpdateInfo)
    }
    with pytest.raises(RecipeError, match="wanted one of gloo, ipc, nccl"):
        WeightSender("mpi", receivers=1)


@pytest.mark.slow
def test_an_ipc_handle_crosses_as_json_without_pickle() -> None:
    from explorers.transports.transfer_calls import decode, encode

    handle = (
        torch.Tensor,
        torch.Size([3, 4]),
        (4, 1),
        0,
        torch.UntypedStorage,
        torch.bfloat16,
        0,
        b"\x00handle\xff",
        96,
        0,
        False,
        b"counter",
        0,
        b"event",
        True,
    )
    update = {"names": ["w"], "ipc_handles": [{"GPU-1": handle}], "tensor_sizes": None}
    found = decode(json.loads(json.dumps(encode(update))))
    assert found == update
    assert isinstance(found["ipc_handles"][0]["GPU-1"][1], torch.Size)
    with pytest.raises(IntegrityError, match="wanted only types that CUDA IPC handles have"):
        encode({"x": subprocess.Popen})
    with pytest.raises(IntegrityError, match="wanted only types that CUDA IPC handles have"):
        decode({"!type": "os.system"})
    with pytest.raises(IntegrityError, match="wanted only types that CUDA IPC handles have"):
        decode({"!dtype": "load"})
