"""The quickstart's sums as an environment of the package verifiers, as its users write them."""

from __future__ import annotations

import reasoning_gym
import verifiers as vf
from datasets import Dataset

_HELDOUT = 8
"""One sum of so many is in the environment's evaluation dataset."""


def load_environment(size: int = 3000, seed: int = 1000) -> vf.Environment:
    """One question and one answer; the rubric looks at what follows `####`."""
    made = reasoning_gym.create_dataset(
        "chain_sum", size=size, seed=seed, min_terms=3, max_terms=3, min_digits=1, max_digits=1
    )
    answers = {one["question"]: str(one["answer"]) for one in made}
    rows = [{"question": question, "answer": answer} for question, answer in answers.items()]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list([row for place, row in enumerate(rows) if place % _HELDOUT]),
        eval_dataset=Dataset.from_list(rows[::_HELDOUT]),
        rubric=vf.Rubric(funcs=[right_sum]),
    )


def right_sum(completion: vf.Messages, answer: str) -> float:
    """1.0 for an answer that ends with `#### ` and the right number."""
    said = str(completion[-1]["content"])
    return float("####" in said and said.rpartition("####")[2].strip() == answer)
