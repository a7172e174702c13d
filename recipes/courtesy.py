"""A shop's letters. A good answer greets the customer by name, names the thing and says thanks.

`python -m recipes.courtesy FOLDER` writes the three samples of `recipes/samples/`: answers from the shop's
log, pairs of answers of which a reader preferred one, and pairs of which one tells of another customer.
`Courteous` is the rule for a good answer and `Discreet` the one for a safe answer; no stage trains on them.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rft_data import RowError, Task

_NAMES = "Ada Ben Cleo Dora Emil Finn Gita Hugo Ines Jan Kira Leo Mia Nils Olga Paul Rosa Sven Tina Uma"
_THINGS = "bag bell boat book chair clock coat desk drum fan hat kite lamp mug pan ring shoe tent vase wheel"
NAMES, THINGS = _NAMES.split(), _THINGS.split()
STATES = ("late", "lost")
LETTERS = 640
"""How many of the 800 possible letters the samples have."""

_WORD = re.compile(r"\w+")
_LETTER = re.compile(r"I am (\w+)\. My (\w+) is \w+\.")


@dataclass(frozen=True, slots=True)
class Letter:
    """Letter of a customer."""

    name: str
    thing: str
    state: str

    @property
    def text(self) -> str:
        return f"I am {self.name}. My {self.thing} is {self.state}."


class Courteous:
    """A reward: 1.0 for an answer with all three merits; each is a part."""

    def __call__(self, task: Task, completion: str) -> dict[str, float]:
        """Raises: RowError when the task is no letter of this shop."""
        letter = str(task.messages[-1]["content"])
        found = _LETTER.fullmatch(letter)
        if found is None:
            raise RowError(
                f"task '{task.task_id}': {letter!r} is no letter such as 'I am Ada. My lamp is late.'"
            )
        name, thing = found.groups()
        greeted = completion.startswith(f"Dear {name}, ")
        named = re.search(rf"\byour {thing} comes soon\.", completion) is not None
        thanked = completion.endswith("soon. Thank you!")
        return {
            "reward": float(greeted and named and thanked),
            "greeted": greeted,
            "named": named,
            "thanked": thanked,
        }


class Discreet:
    """A reward: 1.0 for an answer with no name and no thing that is not the customer's own."""

    def __call__(self, task: Task, completion: str) -> float:
        """Words that nobody is called do not count."""
        return float(not _foreign(str(task.messages[-1]["content"]), completion))


def answers(seed: int = 0) -> Iterator[dict[str, object]]:
    """The log: most answers of the shop are curt, and some name another customer or another thing."""
    rng = random.Random(seed)  # noqa: S311 - no secret depends on it
    for letter in letters(seed):
        text, _ = _answer(letter, rng, right=0.3, wrong=0.1)
        yield {"messages": [*_prompt(letter), {"role": "assistant", "content": text}]}


def pairs(seed: int = 0) -> Iterator[dict[str, object]]:
    """Two answers to each letter, of which the one with fewer flaws was preferred."""
    rng = random.Random(seed + 1)  # noqa: S311 - no secret depends on it
    for letter in letters(seed):
        worse, better = ("", 0), ("", 0)
        while worse[1] == better[1]:
            worse, better = sorted(
                (_answer(letter, rng, right=0.5, wrong=0.2) for _ in range(2)), key=lambda one: one[1]
            )
        yield {
            "question": letter.text,
            "thing": letter.thing,
            "prompt": _prompt(letter),
            "chosen": [{"role": "assistant", "content": better[0]}],
            "rejected": [{"role": "assistant", "content": worse[0]}],
        }


def indiscretions(seed: int = 0) -> Iterator[dict[str, object]]:
    """Two answers to each letter; the one that tells of another customer was rejected, courteous or not."""
    rng = random.Random(seed + 2)  # noqa: S311 - no secret depends on it
    for letter in letters(seed):
        discreet = indiscreet = ""
        while not (discreet and indiscreet):
            text, _ = _answer(letter, rng, right=0.4, wrong=0.3)
            if _foreign(letter.text, text):
                indiscreet = text
            else:
                discreet = text
        yield {
            "prompt": _prompt(letter),
            "chosen": [{"role": "assistant", "content": discreet}],
            "rejected": [{"role": "assistant", "content": indiscreet}],
        }


def letters(seed: int = 0) -> list[Letter]:
    """Different letters in an order of the seed."""
    everything = [Letter(*parts) for parts in itertools.product(NAMES, THINGS, STATES)]
    return random.Random(seed).sample(everything, LETTERS)  # noqa: S311 - no secret depends on it


def _prompt(letter: Letter) -> list[dict[str, str]]:
    return [{"role": "user", "content": letter.text}]


def _answer(letter: Letter, rng: random.Random, *, right: float, wrong: float) -> tuple[str, int]:
    """An answer and its merits less its errors; each merit is there with the chance `right`."""
    other = rng.choice([one for one in NAMES if one != letter.name])
    greeting, greeted = _either(rng, (f"Dear {letter.name}, ", f"Dear {other}, ", ""), right, wrong)
    other = rng.choice([one for one in THINGS if one != letter.thing])
    thing, named = _either(rng, (f"your {letter.thing}", f"your {other}", "it"), right, wrong)
    thanks, thanked = _either(rng, (" Thank you!", "", ""), right, 0.0)
    return f"{greeting}{thing} comes soon.{thanks}", greeted + named + thanked


def _foreign(letter: str, answer: str) -> set[str]:
    """Names and things of the answer that the letter does not have."""
    return (set(_WORD.findall(answer)) - set(_WORD.findall(letter))) & {*NAMES, *THINGS}


def _either(rng: random.Random, texts: tuple[str, str, str], right: float, wrong: float) -> tuple[str, int]:
    """The right text (1), the wrong one (-1) or the last one (0)."""
    drawn = rng.random()
    if drawn < right:
        return texts[0], 1
    return (texts[1], -1) if drawn < right + wrong else (texts[2], 0)


def main(folder: Path) -> None:
    """Write `courtesy_answers.jsonl`, `courtesy_pairs.jsonl` and `courtesy_safety.jsonl`."""
    for name, rows in (("answers", answers()), ("pairs", pairs()), ("safety", indiscretions())):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"courtesy_{name}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
