"""Decoded images: each once, as many as there is room for, and nothing else of them stays in memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from explorers.engines.decoded_images import DecodedImages
from rft_data.buffer import Buffer
from rft_data.core.errors import RowError
from tests.tiny_vision import png
from tests.waiting import LIMIT_S, wait_for

FILES = {name: png(seed, side=64) for seed, name in enumerate("abc")}
PIXELS = 64 * 64 * 4
THREADS = 8

_MEASURES = """
import ctypes, gc, sys
from pathlib import Path
from benchmarks.explorer.images import _live, _status
from explorers.engines.decoded_images import DecodedImages
from rft_data.buffer import Buffer

folder, small, large, size = *sys.argv[1:4], int(sys.argv[4])
with Buffer(folder) as buffer:
    images = DecodedImages(lambda name: buffer.payload(name)[1])
    images(small)
    resident, live = _status("VmRSS"), _live()
    image = images(large)
    for _ in range(3):
        buffer.payload(large)
    gc.collect()
    kept = image.width * image.height * 4
    print((_live() - live - kept) / size, (_status("VmRSS") - resident - kept) / size)
"""


def test_images_are_decoded_again_only_when_there_was_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorers.engines.decoded_images._ROOM", 2 * PIXELS)
    read: list[str] = []
    images = DecodedImages(lambda name: read.append(name) or FILES[name])  # type: ignore[func-returns-value]
    first = images("a")
    assert images("b") is not first
    assert images("a") is first
    images("c")  # b was shown longest ago
    assert images("a") is first
    assert read == ["a", "b", "c"]
    images("b")
    assert read == ["a", "b", "c", "b"]


def test_an_image_larger_than_the_room_is_shared_until_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorers.engines.decoded_images._ROOM", 1)
    images = DecodedImages(FILES.__getitem__)
    assert images("a") is images("a")
    assert images("b") is images("b")
    assert list(images._kept) == ["b"]


def test_requests_that_ask_at_once_share_one_decoding() -> None:
    read: list[str] = []
    go_on, asked = threading.Event(), threading.Barrier(THREADS + 1)

    def fetch(name: str) -> bytes:
        read.append(name)
        assert go_on.wait(LIMIT_S)
        return FILES[name]

    images = DecodedImages(fetch)

    def ask() -> object:
        asked.wait(LIMIT_S)
        return images("a")

    with ThreadPoolExecutor(THREADS) as threads:
        found = [threads.submit(ask) for _ in range(THREADS)]
        asked.wait(LIMIT_S)
        wait_for(lambda: read)
        go_on.set()
        assert {id(one.result()) for one in found} == {id(images("a"))}
    assert read == ["a"]


def test_different_images_are_decoded_at_the_same_time() -> None:
    both = threading.Barrier(2)

    def fetch(name: str) -> bytes:
        both.wait(LIMIT_S)  # passed only by two at once
        return FILES[name]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(DecodedImages(fetch), "ab")
    assert first is not second


def test_an_image_that_could_not_be_fetched_is_fetched_by_the_next_that_asks() -> None:
    files = {"a": b"no image"}
    images = DecodedImages(files.__getitem__)
    with pytest.raises(RowError, match="payload 'a' is no image that can be read"):
        images("a")
    files["a"] = FILES["a"]
    assert images("a").width == 64


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="reads the figures of Linux and of glibc")
def test_nothing_of_a_large_image_stays_in_memory_but_its_pixels(tmp_path: Path) -> None:
    large = png(9, side=2000)
    with Buffer(tmp_path / "buffer") as buffer:
        names = [buffer.add_payload(data, "image/png") for data in (FILES["a"], large)]
    command = [sys.executable, "-c", _MEASURES, str(tmp_path / "buffer"), *names, str(len(large))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    live, resident = map(float, done.stdout.split())
    assert live < 0.3, "Lance, PIL and the buffer hold on to the file"
    assert resident < 0.6, "the allocator holds on to blocks that were freed"
