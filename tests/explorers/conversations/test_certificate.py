"""Templates of four families and two adversarial ones: what the certificate says, and what then happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from explorers.conversations.certificate import SCENARIOS, admit, certify
from explorers.conversations.shape import synthetic, tool_definitions
from rft_data.cli.app import app
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.words import TemplatePolicy
from tests.explorers.conversations.conftest import CONTEXT, TASK
from tests.explorers.conversations.test_model import MORE, TOOLS, USER, check

THOUGHT = "<think>\nhow?\n</think>\n\nfine.<|im_end|>"
THOUGHT_CALL = (
    '<think>\nadd\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call><|im_end|>'
)


@pytest.mark.parametrize(
    ("family", "arguments", "rows"),
    [
        ("qwen2.5", {}, {}),
        ("qwen3", {}, {"thinking": 3, "thinking and tools": 2}),
        ("qwen3", {"enable_thinking": False}, {"plain": 3, "tools": 4}),
        ("llama3", {}, {"tools and text": 2, "thinking and tools": 2, "parallel tools": 0}),
        ("gemma", {}, {"tools": 0, "tools and text": 0, "parallel tools": 0, "thinking and tools": 0}),
        ("counting", {}, {"plain": 3, "system prompt": 2}),
        ("empty_thinking", {}, {"plain": 3, "thinking": 1}),
    ],
)
def test_predicted_rows(template_of, family: str, arguments: dict[str, Any], rows: dict[str, int]) -> None:
    certificate = certify(template_of(family, **arguments))
    found = {finding.scenario: finding.rows for finding in certificate.findings}
    assert {name: found[name] for name in rows} == rows
    broken = {name for name, count in found.items() if count > 1}
    assert certificate.prefix_preserving == (not broken)
    if not arguments and family in ("qwen2.5", "qwen3", "gemma", "llama3"):
        assert broken == {name for name, count in rows.items() if count > 1}


@pytest.mark.slow
def test_certificate_names_the_roles_and_the_reason(template_of) -> None:
    certificate = certify(template_of("qwen3"))
    assert certificate.breaking_roles == ("user",)
    shown = [certify(template_of(family)).shows_tools for family in ("qwen3", "llama3", "gemma")]
    assert shown == [True, True, False]
    assert certificate.lines[0] == "NOT prefix-preserving: it breaks at messages of user"
    assert "  thinking            3 rows of 3 turns (user message: the thinking of the turn is dropped)" in (
        certificate.lines
    )
    assert any(
        "cannot be rendered: one tool call at a time" in line for line in certify(template_of("llama3")).lines
    )


@pytest.mark.parametrize(
    ("family", "scenario"),
    [
        *((family, "plain") for family in ("qwen2.5", "gemma", "llama3", "qwen3")),
        *((family, "system prompt") for family in ("qwen2.5", "gemma", "llama3", "qwen3")),
        *((family, "tools") for family in ("qwen2.5", "llama3", "qwen3")),
        *((family, "parallel tools") for family in ("qwen2.5", "qwen3")),
    ],
)
def test_what_is_certified_is_one_row_equal_to_the_template(template_of, saying, family, scenario) -> None:
    """Every scenario that stays one row, played: the row's text is the template's of the whole."""
    template = template_of(family)
    messages = synthetic(SCENARIOS[scenario], template)
    tools = tool_definitions(messages) if "tools" in scenario else None
    turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
    texts = []
    for n in turns:
        before = template.text(messages[:n], tools, opened=True)
        after = template.text(
            [
                *messages[: n + 1],
                {"role": "tool" if messages[n].get("tool_calls") else "user", "content": "x"},
            ],
            tools,
            opened=True,
        )
        ending = template.ending()
        texts.append(after[len(before) :].partition(ending)[0] + ending.removesuffix("\n"))
    engine, model = saying(template, *texts)
    for n in turns:
        asyncio.run(model.chat(messages[:n], tools=tools))
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, list(range(len(turns))))
    whole = template.text(messages, tools, opened=False)
    if family != "qwen3":  # which puts an empty block of thinking before the newest turn only
        assert whole.removesuffix("\n") == template.tokenizer.decode(row.token_ids)


def two_turns(template: Any, saying: Any, policy: TemplatePolicy) -> tuple[Any, Any]:
    engine, model = saying(template, THOUGHT, "42<|im_end|>", policy=policy)

    async def play() -> None:
        first = await model.chat([USER])
        assert (first.reasoning, first.content) == ("how?", "fine.")
        await model.chat([USER, first.message, MORE])

    asyncio.run(play())
    return engine, model


def test_dropped_thinking_forks_a_row_that_begins_as_the_template_says(template_of, saying) -> None:
    template = template_of("qwen3")
    engine, model = two_turns(template, saying, TemplatePolicy.FORK)
    first, second = model.rows(TASK, CONTEXT)
    check(first, engine, [0])
    check(second, engine, [1])
    said = {"role": "assistant", "content": "fine.", "reasoning_content": "how?"}
    assert engine.seen[1] == template.prompt([USER, said, MORE], None)
    assert "how?" not in template.tokenizer.decode(engine.seen[1])
    assert first.metadata["history_drift"] == second.metadata["history_drift"] == {"forked": 1}
    assert second.messages[1]["reasoning_content"] == "how?"


def test_kept_thinking_stays_in_one_row(template_of, saying) -> None:
    engine, model = two_turns(template_of("qwen3"), saying, TemplatePolicy.KEEP_THINKING)
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert row.metadata == {}


@pytest.mark.slow
def test_refused_templates_end_the_start_and_name_the_way_out(template_of, saying) -> None:
    with pytest.raises(
        RecipeError, match=r"(?s)'template' is refuse.*thinking of the turn is dropped.*Say fork"
    ):
        admit(template_of("qwen3"), TemplatePolicy.REFUSE)
    with pytest.raises(RecipeError, match="cannot render the scenario 'tools', which the workflow needs"):
        admit(template_of("gemma"), TemplatePolicy.FORK, ["tools"])
    assert admit(template_of("gemma"), TemplatePolicy.REFUSE).prefix_preserving
    assert not admit(template_of("qwen3"), TemplatePolicy.FORK).prefix_preserving
    with pytest.raises(RowError, match="does not go on as it began"):
        two_turns(template_of("qwen3"), saying, TemplatePolicy.REFUSE)


def test_a_tool_answer_keeps_the_thinking_before_it_in_the_row(template_of, saying) -> None:
    """Also when the caller's history has lost it."""
    engine, model = saying(template_of("qwen3"), THOUGHT_CALL, "42<|im_end|>")

    async def play() -> None:
        first = await model.chat([USER], tools=TOOLS)
        said = {key: value for key, value in first.message.items() if key != "reasoning_content"}
        answer = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "42"}
        await model.chat([USER, said, answer], tools=TOOLS)

    asyncio.run(play())
    (row,) = model.rows(TASK, CONTEXT)
    check(row, engine, [0, 1])
    assert row.messages[1]["reasoning_content"] == "add"


@pytest.mark.slow
def test_command_prints_the_certificate(template_of, tmp_path: Path) -> None:
    template_of("qwen3").tokenizer.save_pretrained(tmp_path)
    shown = CliRunner().invoke(app, ["debug", "template", str(tmp_path), "enable_thinking=false"])
    assert shown.exit_code == 0
    assert "NOT prefix-preserving: it breaks at messages of tool, user" in shown.output
    swallowed = CliRunner().invoke(app, ["debug", "template", str(tmp_path), "enable_thinkin=false"])
    assert (swallowed.exit_code, "takes no argument 'enable_thinkin'" in swallowed.output) == (2, True)
    (tmp_path / "none").mkdir()
    for wrong in (tmp_path / "none", tmp_path / "tokenizer_config.json", tmp_path / "nowhere"):
        refused = CliRunner().invoke(app, ["debug", "template", str(wrong)])
        assert (refused.exit_code, f"'{wrong}' gives no tokenizer (" in refused.output) == (2, True)
    lines = '[{"role": "user", "content": "Hi"}]\n{"messages": []}\n[{"role": "user", "content": "Ho"}]\n'
    more = CliRunner().invoke(app, ["debug", "template", str(tmp_path), "--more", "--json"], input=lines)
    certificate, first, second = map(json.loads, more.stdout.splitlines())
    assert certificate["prefix_preserving"] is False
    assert ("Hi" in first["text"], "Ho" in second["text"], len(first["ids"])) == (
        True,
        True,
        len(second["ids"]),
    )
    assert more.stderr.startswith("error: a line holds messages: ")
    wrong = CliRunner().invoke(app, ["debug", "template", str(tmp_path), "thinking"])
    assert (wrong.exit_code, "wanted name=value" in wrong.output) == (2, True)
