"""Hypothesis strategies: rows of each format as others would write them, and experiences of all kinds."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rft_data.core.rows import Experience, PreferencePair, Task

text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(lambda s: s.strip())
maybe_text = st.text(st.characters(codec="utf-8"), max_size=12)
number = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False)
leaf = st.none() | st.booleans() | number | maybe_text
json_value = st.recursive(
    leaf, lambda v: st.lists(v, max_size=3) | st.dictionaries(maybe_text, v, max_size=3), max_leaves=5
)
extras = st.dictionaries(st.sampled_from(["level", "note", "id2", "metadata"]), json_value, max_size=3)


def message(role: str, content: st.SearchStrategy[Any] = text) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"role": st.just(role), "content": content})


part = st.fixed_dictionaries({"type": st.just("text"), "text": text}) | st.just({"type": "image"})
arguments = st.dictionaries(text, leaf, max_size=2) | st.just("no json")
call = st.builds(
    lambda name, args, i: {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": args}},
    st.sampled_from(["add", "search"]),
    arguments,
    st.integers(0, 9),
)
calling = st.builds(
    lambda calls, content: {"role": "assistant", "content": content, "tool_calls": calls},
    st.lists(call, min_size=1, max_size=2),
    st.none() | text,
)
answer = message("assistant")
asked = message("user") | message("user", st.lists(part, min_size=1, max_size=2))
tool_round = st.tuples(calling, message("tool"), answer).map(list)
tools = st.lists(
    st.builds(
        lambda name, kind: {
            "type": "function",
            "function": {"name": name, "parameters": {"properties": kind}},
        },
        st.sampled_from(["add", "search"]),
        st.dictionaries(text, json_value, max_size=2),
    ),
    min_size=1,
    max_size=2,
)
prompt = st.tuples(st.lists(message("system"), max_size=1), asked).map(lambda p: [*p[0], p[1]])
completion = st.lists(answer, min_size=1, max_size=1) | tool_round
later = st.lists(st.tuples(asked, completion).map(lambda t: [t[0], *t[1]]), max_size=2).map(
    lambda turns: [item for turn in turns for item in turn]
)
conversation = st.tuples(prompt, completion, later).map(lambda t: [*t[0], *t[1], *t[2]])
plain_conversation = st.tuples(prompt, st.lists(answer, min_size=1, max_size=1)).map(lambda t: [*t[0], *t[1]])


def row(columns: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Columns with values, some more that may be missing or null, and some the format does not know."""
    wanted = st.fixed_dictionaries(columns, optional={k: st.none() | v for k, v in optional.items()})
    return st.tuples(extras, wanted).map(lambda two: {**two[0], **two[1]})


marked = st.tuples(text, st.sampled_from(["18", "1,234", "-3.5", "x = y"])).map(
    lambda t: f"{t[0]}\n#### {t[1]}"
)
boxed = st.tuples(text, text).map(lambda t: t[0].replace("\\", "") + "\\boxed{\\frac{1}{2}}.")
turn = st.sampled_from([("human", "gpt"), ("user", "assistant"), ("human", "chatgpt")])


def _shared(kind: st.SearchStrategy[Any], size: int = 2) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.tuples(*[kind] * size)


_plain_pair = {"prompt": maybe_text, "completion": text}
_spoken_pair = {"prompt": prompt, "completion": completion}
_scores = {"score_chosen": st.floats(-8, 8, width=16), "score_rejected": st.integers(-5, 5)}

ROWS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "gsm8k": row({"question": text, "answer": marked}),
    "problem-solution": row(
        {"problem": text, "solution": boxed | marked | text}, answer=text | st.integers(0, 9)
    ),
    "trl-prompt": row({"prompt": text | prompt}, answer=text | st.integers(), tools=tools),
    "trl-prompt-completion": row(_plain_pair) | row(_spoken_pair, tools=tools),
    "trl-language-modeling": row({"text": text}) | row({"messages": conversation}, tools=tools),
    "trl-unpaired": row({**_plain_pair, "label": st.booleans()})
    | row({**_spoken_pair, "label": st.sampled_from([0, 1, "True", "false"])}, tools=tools),
    "trl-preference": row({"prompt": text, "chosen": text, "rejected": text}, **_scores)
    | row({"chosen": text, "rejected": text})
    | row({"prompt": prompt, "chosen": completion, "rejected": completion}, tools=tools, **_scores)
    | row({"chosen": conversation, "rejected": conversation}, **_scores),
    "openai": st.builds(
        lambda messages, tools, rest, temperature, choices, beside: {
            **beside,
            "request": {
                "model": "m",
                "messages": messages,
                **({"tools": tools} if tools else {}),
                **temperature,
                "user": rest,
            },
            "response": {"id": "r", "usage": {"total_tokens": 3}, "choices": choices},
        },
        prompt,
        st.none() | tools,
        maybe_text,
        st.dictionaries(st.sampled_from(["temperature", "max_tokens", "stop"]), st.integers(0, 9)),
        st.lists(
            st.builds(
                lambda index, said, reason: {
                    "index": index,
                    "message": said,
                    "finish_reason": reason,
                    "logprobs": None,
                },
                st.integers(0, 3),
                answer | calling,
                st.sampled_from(["stop", "length", "tool_calls", None]),
            ),
            min_size=1,
            max_size=3,
        ),
        st.dictionaries(st.sampled_from(["custom_id", "at"]), text),
    ),
    "sharegpt": row(
        {
            "conversations": st.tuples(
                st.booleans(), turn, st.lists(_shared(text), min_size=1, max_size=3)
            ).map(
                lambda t: [
                    *([{"from": "system", "value": "s"}] if t[0] else []),
                    *(
                        {"from": name, "value": said}
                        for pair in t[2]
                        for name, said in zip(t[1], pair, strict=True)
                    ),
                ]
            )
        },
        tools=tools,
    ),
    "data-juicer": row(
        {"query": text, "response": text},
        system=maybe_text,
        history=st.lists(_shared(text).map(list), max_size=2),
        __dj__stats__=extras,
    ),
    "data-juicer-messages": row({"messages": conversation, "__dj__stats__": extras}, tools=tools),
}
"""Rows of every format that is read and written."""

QUESTIONS_ONLY = {
    "gsm8k": row({"question": text, "answer": text.filter(lambda s: "####" not in s)}),
    "problem-solution": row({"problem": text, "answer": text | st.integers()}),
    "openai": st.builds(
        lambda messages, name: {
            "custom_id": name,
            "method": "POST",
            "url": "/v1",
            "body": {"messages": messages},
        },
        prompt,
        text,
    ),
}
"""Rows that are tasks only, in formats that otherwise make experiences."""

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
when = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1)).map(lambda t: t.replace(tzinfo=UTC))
metadata = st.dictionaries(maybe_text, json_value, max_size=3)


@st.composite
def experiences(draw: st.DrawFn, payloads: tuple[str, ...] = ()) -> Experience:
    """A valid experience of any kind: any source, turns, spans, with and without teacher and reward."""
    length = draw(st.integers(1, 6))
    cut = draw(st.integers(0, length))
    source = draw(st.sampled_from(["rollout", "expert", "import", "eval", "probe"]))
    tokens = source == "rollout" or draw(st.booleans())
    low = draw(st.integers(0, 5))
    known = draw(st.booleans())

    def of(kind: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(kind, min_size=length, max_size=length)) if tokens else None

    return Experience(
        experience_id=draw(st.uuids()).hex,
        source=source,
        run_id=draw(text),
        taskset=draw(text),
        task_id=draw(text),
        group_id=draw(text),
        attempt=draw(st.integers(0, 3)),
        member=draw(st.integers(0, 7)),
        turn=draw(st.integers(0, 3)),
        explorer_id=draw(maybe_text),
        token_ids=of(st.integers(0, 2**31 - 1)),
        prompt_length=cut if tokens else 0,
        action_mask=of(st.integers(0, 1)),
        logprobs=of(finite32),
        version_min=low if tokens else None,
        version_max=low + 1 if tokens else None,
        version_spans=((low, 0, 1), (low + 1, 1, length)) if tokens and length > 1 else (),
        messages=tuple(draw(conversation)),
        prompt_messages=draw(st.integers(0, 2)),
        tools=draw(st.none() | tools),
        completion_text=draw(maybe_text),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort", ""])),
        reward=draw(finite32) if known else None,
        reward_parts=draw(
            st.dictionaries(maybe_text, st.floats(allow_nan=False, allow_infinity=False), max_size=2)
        ),
        unscored_reason=None if known else draw(st.none() | text),
        teacher_logprobs=of(finite32) if draw(st.booleans()) else None,
        environment=draw(st.none() | text),
        payloads=draw(st.lists(st.sampled_from(payloads), unique=True)) if payloads else (),
        sampling={"temperature": draw(st.floats(0, 2))},
        tokenizer_hash=draw(maybe_text),
        metadata=draw(metadata),
        created_at=draw(when),
    )


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """A task with every field."""
    return Task(
        draw(text),
        tuple(draw(prompt)),
        draw(st.none() | text),
        draw(st.sampled_from(["train", "heldout"])),
        draw(st.none() | finite32),
        draw(metadata),
        draw(st.none() | text),
        draw(st.none() | text),
        tuple(draw(st.lists(text, max_size=2))),
        draw(st.none() | text),
    )


@st.composite
def preferences(draw: st.DrawFn) -> PreferencePair:
    """A pair with every field."""
    score = st.none() | finite32
    return PreferencePair(
        draw(st.sampled_from(["import", "mined", "human"])),
        draw(text),
        draw(text),
        tuple(draw(completion)),
        tuple(draw(completion)),
        tuple(draw(prompt)),
        draw(st.none() | tools),
        draw(st.none() | text),
        draw(st.none() | text),
        draw(score),
        draw(score),
        draw(maybe_text),
        draw(metadata),
        draw(when),
    )


def float32(value: float) -> float:
    return float(np.float32(value))
