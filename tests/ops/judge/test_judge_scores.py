"""Scores read from replies as judges write them."""

import pytest

from ops.judge.judge_scores import ScoreReader


def test_the_last_score_of_a_reply_counts():
    replies = ["Score: 7", "I would say **Score:** 3/10.\nNo: Score: 4", "Score - 8", "SCORE: 10.0\n"]
    assert ScoreReader().read(replies) == pytest.approx([0.7, 0.4, 0.8, 1.0])


def test_a_negative_score_keeps_its_sign():
    replies = ["Score: -3", "Score:-3", "**Score**: -2.5"]
    assert ScoreReader(low=-10, high=10).read(replies) == pytest.approx([0.35, 0.35, 0.375])
    assert ScoreReader().read(["Score: -3"]) == ["the judge's score -3 is not in [0, 10]"]


def test_a_scale_in_brackets_is_not_the_score():
    replies = ["Score (0-10): 8", "Score (out of 10) = 8", "Score: 8 (of 10)", "Score [0-10]: 8"]
    assert ScoreReader().read(replies) == pytest.approx([0.8] * 4)
    [why] = ScoreReader().read(["Score (0-10) is eight"])
    assert "holds no score" in why


def test_replies_without_a_usable_score_say_why():
    reasons = ScoreReader().read(["", "seven", "Score: 11", "scores are bad"])
    assert [reason.split(":")[0] for reason in reasons[:2]] == ["the judge's reply holds no score"] * 2
    assert reasons[2] == "the judge's score 11 is not in [0, 10]"
    assert "holds no score: 'scores are bad'" in reasons[3]


def test_own_pattern_and_scale():
    reader = ScoreReader(pattern=r"\[\[(?P<score>\d+)\]\]", low=1, high=5)
    assert reader.read(["[[1]] then [[3]]", "[[5]]"]) == [0.5, 1.0]


@pytest.mark.slow
def test_json_is_found_in_prose_and_the_last_object_counts():
    reader = ScoreReader(json_key="score", low=0, high=1)
    replies = [
        '{"score": 0.25}',
        'First {"score": 0.1}, then:\n```json\n{"why": "a } brace", "score": 0.5}\n```',
        '{"score": "0.75"}',
        '{"score": {"deep": 1}}',
        '{"score": true}',
        '{"score": NaN}',
        "{" * 30_000,
        "no json",
    ]
    read = reader.read(replies)
    assert read[:3] == [0.25, 0.5, 0.75]
    assert all(isinstance(value, str) for value in read[3:])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"pattern": r"\d"}, "wanted one with a group"),
        ({"pattern": r"(\d)(?P<score>x)"}, "unnamed groups"),
        ({"pattern": "(?=x)(?P<score>x)"}, "Invalid regular expression|invalid perl operator"),
        ({"pattern": "(?P<score>x)", "json_key": "x"}, "at most one"),
        ({"low": 3, "high": 3}, "low < high"),
    ],
)
def test_readers_that_could_read_nothing_are_refused(args, message):
    with pytest.raises(ValueError, match=message):
        ScoreReader(**args)
