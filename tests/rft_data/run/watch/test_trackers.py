import json
import math
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rft_data.buffer import Buffer
from rft_data.core.errors import MissingExtraError, UnknownComponentError
from rft_data.core.words import Verdict
from rft_data.run.watch import tracker_feed
from rft_data.run.watch.metrics_log import MetricsLog
from rft_data.run.watch.samples import COLUMNS, Sample
from rft_data.run.watch.tracker_feed import Point
from rft_data.run.watch.trackers import CALLBACKS, make_trackers
from tests.rft_data.run.watch.wandb_file import records_of_wandb

SAMPLE = Sample("1+1=", "2", 1.0, 0.5, Verdict.KEPT)


def point(step: int = 7, version: int = 3) -> Point:
    numbers = {
        "trainer": {"reward": 0.5, "loss": math.nan, "grad_norm": 1e300},
        "explorer-0": {"tokens": 4096.0},
        "run": {"heldout/reward": 0.75},
        "ops": {"seconds": 3.0, "seconds/length": 2.0},
        "sampler": {"lag_in_queue/8+": 2.0},
        "loop": {"policy_version": float(version), "elapsed_s": 12.5},
    }
    return Point(step, version, 12.5, numbers)


# --- event files, read back with a checksum of this file's own and the public definition of the messages --


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, most significant first over reflected input: RFC 3720's definition, no table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= int(f"{byte:08b}"[::-1], 2) << 24
        for _ in range(8):
            crc = ((crc << 1) ^ (0x1EDC6F41 if crc & 0x80000000 else 0)) & 0xFFFFFFFF
    return int(f"{crc ^ 0xFFFFFFFF:032b}"[::-1], 2)


def event_class() -> Any:
    """TensorFlow's Event message, from its public definition."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tensorflow", syntax="proto3")

    def message(name: str, *fields: tuple[int, str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for number, called, type_, of, many in fields:
            label = kind.LABEL_REPEATED if many else kind.LABEL_OPTIONAL
            field = made.field.add(number=number, name=called, type=type_, label=label)
            if of:
                field.type_name = of

    message("Value", (1, "tag", kind.TYPE_STRING, "", False), (2, "simple_value", kind.TYPE_FLOAT, "", False))
    message("Summary", (1, "value", kind.TYPE_MESSAGE, ".tensorflow.Value", True))
    message("SessionLog", (1, "status", kind.TYPE_INT32, "", False))
    message(
        "Event",
        (1, "wall_time", kind.TYPE_DOUBLE, "", False),
        (2, "step", kind.TYPE_INT64, "", False),
        (3, "file_version", kind.TYPE_STRING, "", False),
        (5, "summary", kind.TYPE_MESSAGE, ".tensorflow.Summary", False),
        (7, "session_log", kind.TYPE_MESSAGE, ".tensorflow.SessionLog", False),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Event"))


def events(file: Path) -> Iterator[Any]:
    """Every event of a TFRecord file; fails on a checksum that is wrong."""
    event, data = event_class(), file.read_bytes()

    def checked(part: bytes, stored: bytes) -> bytes:
        crc = slow_crc32c(part)
        masked = ((crc >> 15 | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32
        assert struct.unpack("<I", stored) == (masked,)
        return part

    while data:
        [size] = struct.unpack("<Q", checked(data[:8], data[8:12]))
        yield event.FromString(checked(data[12 : 12 + size], data[12 + size : 16 + size]))
        data = data[16 + size :]


def test_the_checksum_of_this_reader_matches_the_published_vectors() -> None:
    assert slow_crc32c(b"123456789") == 0xE3069283
    assert slow_crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4
    assert slow_crc32c(b"\xff" * 32) == 0x62A8AB43


def test_tensorboard_has_two_step_axes(tmp_path: Path) -> None:
    [tracker] = make_trackers(["tensorboard"], "run", tmp_path, 10)
    tracker.log(point(7, 3))
    tracker.log(replace(point(8, 300), samples=(SAMPLE,)))
    tracker.close()
    [by_step] = (tmp_path / "tensorboard" / "by_step").glob("*tfevents*")
    [by_version] = (tmp_path / "tensorboard" / "by_version").glob("*tfevents*")
    found = list(events(by_step))
    assert found[0].file_version == "brain.Event:2"
    assert (found[1].step, found[1].session_log.status) == (7, 1)
    assert [event.step for event in found[2:]] == [7, 8, 8]
    [text] = found[4].summary.value
    assert text.tag.startswith("completions")
    assert b"1+1=" in by_step.read_bytes()
    values = {value.tag: value.simple_value for value in found[2].summary.value}
    assert values["train/reward"] == 0.5
    assert math.isnan(values["train/loss"])
    assert values["train/grad_norm"] == math.inf  # larger than a 32-bit float
    assert values["eval/reward"] == 0.75
    assert (values["train/ops/seconds/all"], values["train/ops/seconds/length"]) == (3.0, 2.0)
    assert "train/ops/seconds" not in values
    assert values["train/sampler/lag_in_queue/8+"] == 2.0
    assert (values["train/loop/policy_version"], values["train/loop/elapsed_s"]) == (3.0, 12.5)
    explored = list(events(by_version))[2:]
    assert [event.step for event in explored] == [3, 300]
    assert [value.tag for value in explored[0].summary.value] == ["train/explorer-0/tokens"]


def test_tensorboard_without_its_writer_says_which_extra_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"tracker 'tensorboard' needs .*'tensorboardX'.*\[train\]"):
        make_trackers(["tensorboard"], "run", tmp_path, 10)


def test_a_resumed_run_writes_a_new_event_file(tmp_path: Path) -> None:
    for step in (7, 5):
        [tracker] = make_trackers(["tensorboard"], "run", tmp_path, 10)
        tracker.log(point(step))
        tracker.close()
    files = list((tmp_path / "tensorboard" / "by_step").glob("*tfevents*"))
    starts = sorted(list(events(file))[1].step for file in files)
    assert starts == [5, 7]  # TensorBoard drops what the older file says from step 5 on


# --- transformers' callbacks -----------------------------------------------------------------------------


def test_a_name_that_is_no_tracker_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UnknownComponentError, match=r"tracker 'wandbb' is not known; did you mean 'wandb'\?"):
        make_trackers(["wandbb"], "run", tmp_path, 1)
    with pytest.raises(UnknownComponentError, match=r"There are: tensorboard, azure_ml, .*, wandb"):
        make_trackers(["codecarbon"], "run", tmp_path, 1)


def test_a_tracker_named_twice_is_one(tmp_path: Path) -> None:
    assert len(make_trackers(["tensorboard", "tensorboard"], "run", tmp_path, 1)) == 1


@pytest.mark.slow
def test_every_served_name_is_an_integration_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.integrations import get_reporting_integration_callbacks, integration_utils

    assert len(get_reporting_integration_callbacks(list(CALLBACKS))) == len(CALLBACKS)
    monkeypatch.setattr(integration_utils, "is_swanlab_available", lambda: False)  # if it is not installed
    with pytest.raises(MissingExtraError, match=r"tracker 'swanlab' cannot be used: .*requires swanlab"):
        make_trackers(["swanlab"], "run", tmp_path, 1)


_DVCLIVE = """
import json
class Live:
    def __init__(self):
        self.numbers, self.steps = {}, []
    def log_params(self, params):
        self.params = params
    def log_metric(self, name, value):
        self.numbers[name] = value
    def next_step(self):
        self.steps.append(self.numbers)
        self.numbers = {}
    def end(self):
        with open("ended.json", "w") as file:
            json.dump({"steps": self.steps, "run_name": self.params["run_name"]}, file)
"""
_PLOTS = """
class Metric:
    @staticmethod
    def could_log(value):
        return isinstance(value, float)
"""
_UTILS = """
def standardize_metric_name(name, framework):
    return name
"""


@pytest.mark.slow
def test_a_transformers_callback_is_driven_without_a_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "dvclive"  # the small part of that package that the callback uses
    package.mkdir()
    for name, text in {"__init__": _DVCLIVE, "plots": _PLOTS, "utils": _UTILS}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    try:
        with Buffer(tmp_path / "buffer") as buffer:
            trackers = make_trackers(["dvclive"], "run-9", tmp_path, 2)
            with MetricsLog(buffer, "run-9", trackers) as metrics:
                metrics.record(0, 1, {"trainer": {"reward": 0.25}})
                metrics.record(1, 2, {"trainer": {"reward": 0.75}})
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "dvclive"]:
            del sys.modules[name]
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert ended["run_name"] == "run-9"
    assert [step["reward"] for step in ended["steps"]] == [0.25, 0.75]
    assert [step["loop/policy_version"] for step in ended["steps"]] == [1.0, 2.0]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers may take longer to finish than the ten seconds of a run: the machine may be busy."""
    monkeypatch.setattr(tracker_feed, "_PATIENCE_S", 120.0)


def log_run(folder: Path, tracker: str, name: str, starts: Sequence[Sequence[int]]) -> None:
    """A run that takes these steps in each of its starts; the reward is the step's number."""
    with Buffer(folder / "buffer") as buffer:
        for steps in starts:
            trackers = make_trackers([tracker], name, folder, 9)
            with MetricsLog(buffer, name, trackers) as metrics:
                for step in steps:
                    numbers = {
                        "trainer": {"reward": float(step)},
                        "ops": {"seconds": 1.0, "seconds/length": 1.0},
                    }
                    metrics.record(step, step + 1, numbers, [SAMPLE])


@pytest.mark.heavy
@pytest.mark.usefixtures("patient")
def test_wandb_shows_each_run_once_and_leaves_the_trainers_state_alone(
    wandb_offline: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)  # of a trainer in this process, as in an inline run
    log_run(tmp_path / "a", "wandb", "run-1", [[0, 1], [2]])
    log_run(tmp_path / "b", "wandb", "run-2", [[0]])
    assert "switched off" not in caplog.text
    told: dict[tuple[str, str], list[float]] = {}
    for file in sorted(wandb_offline.glob("offline-run-*/*.wandb")):
        records, end = records_of_wandb(file), time.monotonic() + 60
        while not any(record.HasField("exit") for record in records) and time.monotonic() < end:
            time.sleep(0.1)  # W&B's own process writes the file
            records = records_of_wandb(file)
        [run] = [record.run for record in records if record.HasField("run")]
        settings = {item.key for record in records for item in record.config.update}
        assert settings <= {"output_dir", "run_name", "_wandb"}, "settings that are not the run's"
        for record in records:
            if record.HasField("history"):
                items = {
                    "/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item
                }
                assert items["train/global_step"] == items["train/reward"]
                table = next(value for key, value in items.items() if key.startswith("completions"))
                assert table, "no table of samples"
                told.setdefault((run.display_name, run.run_id), []).append(items["train/reward"])
    assert {name: rewards for (name, _), rewards in told.items()} == {"run-1": [0, 1, 2], "run-2": [0]}
    assert len(told) == 2, "a resumed run goes on in the same one"
    tables = [
        json.loads(path.read_text()) for path in wandb_offline.glob("offline-run-*/files/**/*.table.json")
    ]
    assert len(tables) == 4
    assert tables[0]["columns"] == list(COLUMNS)
    assert tables[0]["data"] == [["1+1=", "2", 1.0, 0.5, "kept"]]
    assert accelerator.distributed_type == "NO"


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_trackio_goes_on_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read at the import: so import it anew
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        monkeypatch.delitem(sys.modules, name)
    pytest.importorskip("trackio")
    log_run(tmp_path / "a", "trackio", "run-1", [[0, 1], [2]])
    log_run(tmp_path / "b", "trackio", "run-1", [[0]])  # of the same name, begun anew
    assert "switched off" not in caplog.text
    [path] = (tmp_path / "trackio").glob("*.db")
    told: dict[str, list[float]] = {}
    tables = []
    with closing(sqlite3.connect(path)) as database:
        for run, metrics in database.execute("select run_name, metrics from metrics order by id"):
            numbers = json.loads(metrics)
            if "train/reward" in numbers:
                told.setdefault(run, []).append(numbers["train/reward"])
            tables += [numbers["completions"]] if "completions" in numbers else []
    assert sorted(told.values()) == [[0], [0, 1, 2]]
    assert all(name.startswith("run-1-") for name in told)
    assert len(tables) == 4
    assert "1+1=" in json.dumps(tables)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_mlflow_goes_on_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(None)
    log_run(tmp_path / "a", "mlflow", "run-1", [[0, 1], [2]])
    log_run(tmp_path / "b", "mlflow", "run-1", [[0]])
    assert "switched off" not in caplog.text
    client = mlflow.MlflowClient()
    runs = client.search_runs(["0"])
    told = {
        run.info.run_id: [point.value for point in client.get_metric_history(run.info.run_id, "reward")]
        for run in runs
    }
    assert {run.info.run_name for run in runs} == {"run-1"}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert sorted(told.values()) == [[0], [0, 1, 2]]
    tables = [json.loads(path.read_text()) for path in (tmp_path / "mlruns").rglob("step-*.json")]
    assert len(tables) == 4
    assert tables[0] == {"columns": list(COLUMNS), "data": [["1+1=", "2", 1.0, 0.5, "kept"]]}


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_swanlab_goes_on_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"MODE": "offline", "LOG_DIR": str(tmp_path / "swanlog")}.items():
        monkeypatch.setenv(f"SWANLAB_{name}", value)
    pytest.importorskip("swanlab")
    log_run(tmp_path / "a", "swanlab", "run-1", [[0, 1], [2]])
    log_run(tmp_path / "b", "swanlab", "run-1", [[0]])
    assert "switched off" not in caplog.text
    files = sorted((tmp_path / "swanlog").glob("run-*/run-*.swanlab"))
    assert len(files) == 3
    assert len({file.name for file in files}) == 2, "a resumed run has the id of its first start"
    assert all(b"train/reward" in file.read_bytes() for file in files)
    tables = [path.read_text() for path in (tmp_path / "swanlog").rglob("*.json") if "echarts" in path.parts]
    assert any("1+1=" in table for table in tables)
