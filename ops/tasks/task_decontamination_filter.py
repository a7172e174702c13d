"""`task_decontamination_filter`: drops training tasks that evaluation tasks can be recognised in."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from data_juicer.ops.base_op import OPERATORS, Pipeline

from ops.base import ArrowFilter, Judgement
from ops.similarity.word_ngrams import Ngrams, split_words
from rft_data.exchange.formats.jsonlines import read_objects
from rft_data.tasks.columns import pick
from rft_data.tasks.table import held_out


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """M tasks that training must not see."""

    names: Sequence[str]
    texts: Sequence[str]
    answers: Sequence[str | None]


@OPERATORS.register_module("task_decontamination_filter")
class TaskDecontaminationFilter(ArrowFilter, Pipeline):
    """Drops a training task that has the prompt of an evaluation task, or shares n words in a row with one.

    Evaluation tasks are the held-out tasks of the batch (a whole taskset with `heldout: 1`) and `files`;
    they are never dropped. Prompts are equal when they differ only in case and spaces. The n-gram rule is
    GPT-3's (arXiv:2005.14165, appendix C): n = 13 words, case and punctuation ignored; an evaluation
    prompt of fewer words is found only when it is the whole prompt. An n-gram in more than `max_matches`
    training tasks is a phrase of the template and counts for nothing. The reason names the evaluation
    task. A batch without a column `split` has no held-out tasks; an empty prompt matches nothing.
    """

    whole_batch = True
    required_columns = ("taskset", "task_id", "text")
    optional_columns = ("split", "answer")

    def __init__(
        self,
        n: int = 13,
        files: list[str] | None = None,
        prompt: str = "question",
        reference: str = "answer",
        max_matches: int = 10,
        *args: object,
        **kwargs: object,
    ) -> None:
        """Read the files now.

        Args:
            n: words of an n-gram.
            files: JSON-lines files of evaluation tasks.
            prompt: field of those files with the prompt; `reference`: with the answer.
            max_matches: training tasks that may share an n-gram before it is taken for a template's.
        Raises: ValueError for n < 1 or max_matches < 1, or a file without these fields (RowError);
            MissingFileError.
        """
        super().__init__(*args, **kwargs)
        if n < 1 or max_matches < 1:
            raise ValueError(f"n is {n} and max_matches {max_matches}; wanted both to be at least 1")
        self.n = n
        self.max_matches = max_matches
        self._named = _read(files or [], prompt, reference)

    def judge(self, table: pa.Table) -> Judgement:
        """Keep evaluation tasks, and training tasks that share nothing with them."""
        texts = table["text"].to_pylist()
        evaluated = held_out(table)
        evaluation = self._evaluation(table, texts, evaluated)
        training = np.flatnonzero(~evaluated)
        prompts = [texts[row] for row in training]
        hits = self._sharing(prompts, evaluation)
        answers = table["answer"].to_pylist() if "answer" in table.column_names else [None] * len(texts)
        hits |= _equal(prompts, [answers[row] for row in training], evaluation)
        keep = np.ones(len(texts), bool)
        keep[training[sorted(hits)]] = False
        return Judgement(keep, [hits[place] for place in sorted(hits)])

    def _evaluation(
        self, table: pa.Table, texts: Sequence[str], evaluated: npt.NDArray[np.bool_]
    ) -> _Evaluation:
        rows = table.filter(pa.array(evaluated))
        ids = zip(rows["taskset"].to_pylist(), rows["task_id"].to_pylist(), strict=True)
        names = [f"{taskset}/{task_id}" for taskset, task_id in ids]
        answers = rows["answer"].to_pylist() if "answer" in rows.column_names else [None] * len(names)
        own = [texts[row] for row in np.flatnonzero(evaluated).tolist()]
        named = self._named
        return _Evaluation([*names, *named.names], [*own, *named.texts], [*answers, *named.answers])

    def _sharing(self, prompts: Sequence[str], evaluation: _Evaluation) -> dict[int, str]:
        """Training prompt to reason, for those that share an n-gram that is no template's."""
        (theirs, mine), spelled = split_words(evaluation.texts, prompts)
        known, grams = theirs.ngrams(self.n), mine.ngrams(self.n)
        order = np.argsort(known.hashes, kind="stable")
        hashes = known.hashes[order]
        place = np.minimum(np.searchsorted(hashes, grams.hashes), max(len(order) - 1, 0))
        found = np.flatnonzero(hashes[place] == grams.hashes) if len(order) else np.zeros(0, int)
        found = found[~_common(grams, found, self.max_matches)]
        hits: dict[int, str] = {}
        for gram in found.tolist():
            prompt, other, start = int(grams.text[gram]), int(order[place[gram]]), int(grams.start[gram])
            if prompt in hits or not mine.same(start, theirs, int(known.start[other]), self.n):
                continue
            words = " ".join(spelled.take(pa.array(mine.numbers[start : start + self.n])).to_pylist())
            task = evaluation.names[known.text[other]]
            hits[prompt] = f"shares the {self.n}-gram '{words}' with evaluation task {task}"
        return hits


def _common(grams: Ngrams, found: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.bool_]:
    """Those of the found n-grams that are in more than `most` different texts."""
    hashes, inverse = np.unique(grams.hashes[found], return_inverse=True)
    pairs = np.unique(np.stack([inverse, grams.text[found]]), axis=1)
    texts = np.bincount(pairs[0], minlength=len(hashes)) if len(hashes) else np.zeros(0, np.int64)
    common: npt.NDArray[np.bool_] = (texts > most)[inverse]
    return common


def _equal(prompts: Sequence[str], answers: Sequence[str | None], evaluation: _Evaluation) -> dict[int, str]:
    """Training prompt to reason, for those that are an evaluation prompt."""
    known: dict[str, int] = {}
    for place, text in enumerate(evaluation.texts):
        known.setdefault(_plain(text), place)
    hits = {}
    for place, text in enumerate(prompts):
        other = known.get(_plain(text)) if text.strip() else None
        if other is not None:
            same = answers[place] == evaluation.answers[other]
            answer = "the same answer" if same else "another answer"
            hits[place] = f"has the prompt of evaluation task {evaluation.names[other]}, with {answer}"
    return hits


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _read(files: Sequence[str], prompt: str, reference: str) -> _Evaluation:
    names, texts, answers = [], [], []
    for name in files:
        for where, row in read_objects(Path(name)):
            names.append(where)
            texts.append(str(pick(row, prompt, where)))
            answers.append(str(pick(row, reference, where)))
    return _Evaluation(names, texts, answers)
