"""The terminal: keys from a pipe or a real terminal, and model output that cannot act on it."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rft_data.buffer import Buffer
from rft_data.exchange.annotate import Session, Subject, ratings
from rft_data.exchange.annotate.terminal import annotate, key_presses, subject_text
from tests.rft_data.conftest import make_experience
from tests.rft_data.run.rejudge.explored import explore

ROOT = Path(__file__).parents[4]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with Buffer(tmp_path / "buffer") as buffer:
        explore(buffer, [[1.0, 0.0], [0.5, 0.25]])
    return tmp_path / "buffer"


def test_control_characters_are_shown_and_do_not_act() -> None:
    wild = make_experience(0, completion_text="\x1b[2Jgone\nnext\tline\x9b31m")
    text = subject_text(Subject(wild), 80)
    assert "\\x1b[2Jgone\nnext\\tline\\x9b31m" in text
    assert not any(ord(c) < 32 and c != "\n" for c in text)


def test_a_long_text_is_wrapped_and_cut() -> None:
    text = subject_text(Subject(make_experience(0, completion_text="x" * 100_000)), 50)
    assert max(map(len, text.splitlines())) <= 50
    assert "... 1800 more lines" in text


def test_both_completions_and_no_reward_are_shown() -> None:
    pair = Subject(make_experience(0, completion_text="one"), make_experience(1, completion_text="other"))
    text = subject_text(pair, 80)
    assert text.index("--- a ") < text.index("one") < text.index("--- b ") < text.index("other")
    assert "reward" not in text
    assert "1.0" not in text


@pytest.mark.slow
def test_unknown_keys_are_explained_and_the_end_of_input_stops(stored: Path) -> None:
    told: list[str] = []
    with Buffer(stored) as buffer:
        session = Session(buffer, "ann", ratings(buffer))
        annotate(session, iter("9\x1b3"), told.append)
        assert buffer.counts()["feedback"] == 1
    assert "'9' means nothing here; [0-5 rate, s skip, u undo, q quit]" in told
    assert "'\\x1b' means nothing here; [0-5 rate, s skip, u undo, q quit]" in told


def test_keys_of_a_pipe_are_its_characters() -> None:
    read, write = os.pipe()
    os.write(write, "3\n s\té".encode())
    os.close(write)
    with key_presses(read) as keys:
        assert [key for key in keys if key.isascii()] == ["3", "s"]
    os.close(read)


@pytest.mark.parametrize(
    "sequence", ["\x1b[5~", "\x1b[3~", "\x1b[1;5A", "\x1b[D", "\x1bOq", "\x1b[[A", "\x1b\x1b[B", "\x1b3"]
)
def test_a_key_of_several_bytes_answers_nothing(sequence: str) -> None:
    ours, theirs = pty.openpty()
    try:
        with key_presses(theirs) as keys:
            os.write(ours, f"{sequence}{sequence}4".encode())
            got = [next(keys)]
            while got[-1] != "4":
                got.append(next(keys))
            assert set(got) == {"\x1b", "4"}
            os.write(ours, b"2")
            assert next(keys) == "2"
    finally:
        os.close(ours)
        os.close(theirs)


def command(stored: Path, *more: str) -> list[str]:
    script = str(Path(sys.executable).with_name("rft"))
    return [script, "data", "annotate", "--buffer", str(stored), "--author", "ann", *more]


@pytest.mark.heavy
def test_the_command_takes_keys_from_a_pipe_and_goes_on_next_time(stored: Path) -> None:
    first = subprocess.run(command(stored), input="5sq", capture_output=True, text=True, cwd=ROOT, check=True)
    assert first.stdout.strip() == "1 score, 1 skipped; 0 new preference pairs"
    assert "answer 0 of group 0" in first.stderr
    second = subprocess.run(command(stored), input="1", capture_output=True, text=True, cwd=ROOT, check=True)
    assert "answer 0 of group 1" in second.stderr
    assert "answer 0 of group 0" not in second.stderr
    with Buffer(stored, read_only=True) as buffer:
        assert buffer.read("feedback", ["value"]).column(0).to_pylist() == [5.0, None, 1.0]


@pytest.mark.slow
def test_the_command_takes_single_keys_from_a_terminal(stored: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(stored, "--pairwise"), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, close_fds=True
    )
    os.close(theirs)
    seen = _until(ours, "is better")
    os.write(ours, b"a")
    seen += _until(ours, "group 1")
    os.write(ours, b"b")
    seen += _until(ours, "2 new preference pairs")
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert "nothing is left to annotate" in seen
    with Buffer(stored, read_only=True) as buffer:
        assert buffer.counts()["preferences"] == 2


def _until(terminal: int, text: str) -> str:
    """What the terminal shows until it shows `text`."""
    seen, deadline = "", time.monotonic() + 60
    while text not in seen:
        assert time.monotonic() < deadline, f"never showed {text!r}: {seen}"
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                seen += os.read(terminal, 4096).decode("utf-8", "replace")
            except OSError:  # the other side is closed
                break
    return seen
