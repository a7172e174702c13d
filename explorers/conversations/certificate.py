"""The certificate of a chat template: whether a conversation of many turns stays one row with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from explorers.conversations.shape import Form, broken, synthetic, tool_definitions
from explorers.conversations.template import ChatTemplate
from rft_data.core.errors import RecipeError, RowError
from rft_data.core.words import TemplatePolicy

log = logging.getLogger(__name__)

_SYSTEM, _USER, _TOOL, _TURN = Form("system"), Form("user"), Form("tool"), Form("assistant")
_THOUGHT = Form("assistant", thinks=True)
_CALL = Form("assistant", calls=1, says=False)

TOOLS = "tools"
SCENARIOS: dict[str, tuple[Form, ...]] = {
    "plain": (_USER, _TURN, _USER, _TURN, _USER, _TURN),
    "system prompt": (_SYSTEM, _USER, _TURN, _USER, _TURN),
    "thinking": (_USER, _THOUGHT, _USER, _THOUGHT, _USER, _THOUGHT),
    "empty content": (_USER, Form("assistant", says=False), _USER, _TURN),
    TOOLS: (_USER, _CALL, _TOOL, _CALL, _TOOL, _TURN, _USER, _TURN),
    "tools and text": (_USER, Form("assistant", calls=1), _TOOL, _TURN, _USER, _TURN),
    "parallel tools": (_USER, Form("assistant", calls=2, says=False), _TOOL, _TOOL, _TURN, _USER, _TURN),
    "thinking and tools": (
        _USER,
        Form("assistant", thinks=True, calls=1, says=False),
        _TOOL,
        _THOUGHT,
        _USER,
        _THOUGHT,
    ),
}
"""Synthetic conversations by name; every turn of the assistant is sampled."""


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a template does not go on as it began."""

    roles: tuple[str, ...]
    """Roles of the messages that were appended."""
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one scenario with a chat template."""

    scenario: str
    turns: int
    """Sampled turns."""
    rows: int
    """Rows of a rollout where each break begins another one."""
    breaks: tuple[Break, ...]
    refused: str
    """Error of the template that cannot render it; empty when it can."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The results of all scenarios with a chat template."""

    findings: tuple[Finding, ...]
    shows_tools: bool
    """Whether the definitions of tools are in the prompt."""

    @property
    def prefix_preserving(self) -> bool:
        """Whether every scenario that it can render stays one row."""
        return all(finding.rows == 1 for finding in self.findings if not finding.refused)

    @property
    def breaking_roles(self) -> tuple[str, ...]:
        """Roles of the messages after which a conversation does not go on as it began."""
        return tuple(
            sorted({role for finding in self.findings for one in finding.breaks for role in one.roles})
        )

    @property
    def lines(self) -> list[str]:
        """The certificate as text."""
        verdict = "prefix-preserving: a conversation is one row"
        if not self.prefix_preserving:
            verdict = f"NOT prefix-preserving: it breaks at messages of {', '.join(self.breaking_roles)}"
        width = max(len(finding.scenario) for finding in self.findings)
        unseen = [] if self.shows_tools else ["it does not show the model which tools there are"]
        return [verdict, *unseen, *(f"  {one.scenario:{width}}  {_outcome(one)}" for one in self.findings)]


def certify(template: ChatTemplate) -> Certificate:
    """Render every scenario turn by turn. Raises: RecipeError where there is no chat template."""
    if template.tokenizer.chat_template is None:
        raise RecipeError(
            f"the tokenizer of '{template.tokenizer.name_or_path}' has no chat template; take an "
            "instruction-tuned model, or put a chat_template.jinja into its folder."
        )
    ask, (tool,) = synthetic((_USER,), template), tool_definitions(())
    shows_tools = tool["function"]["description"] in template.text(ask, [tool], opened=True)
    findings = tuple(_finding(template, name, forms) for name, forms in SCENARIOS.items())
    return Certificate(findings, shows_tools)


def admit(
    template: ChatTemplate, policy: TemplatePolicy, needed: Sequence[str] = (), *, hidden_tools: bool = False
) -> Certificate:
    """The certificate, written to the log, at the start of a run with conversations of many turns.

    Args: hidden_tools: the template need not show which tools there are.
    Raises: RecipeError when the template cannot render a scenario of `needed`, or leaves the tools of one
        out, and when it is not prefix-preserving and the policy is to refuse that.
    """
    certificate = certify(template)
    for finding in certificate.findings:
        if finding.scenario in needed and finding.refused:
            raise RecipeError(
                f"the model's chat template cannot render the scenario '{finding.scenario}', which the "
                f"workflow needs ({finding.refused}); take a template that can, or another workflow."
            )
    if TOOLS in needed and not (certificate.shows_tools or hidden_tools):
        raise RecipeError(
            "the model's chat template does not show the model which tools there are; take a template that "
            "does, or say explorer.workflow.args.hidden_tools: true where the model knows them otherwise: "
            "from the system prompt, or from training."
        )
    if certificate.prefix_preserving:
        log.info("chat template: %s", certificate.lines[0])
        return certificate
    if policy is TemplatePolicy.REFUSE:
        raise RecipeError(
            "the workflow's argument 'template' is refuse, and the model's chat template is "
            + "\n".join(certificate.lines)
            + "\nSay fork (more rows, each as the template renders it) or keep_thinking (one row, with the "
            "thinking that the template would drop), or take another template."
        )
    log.warning("chat template, with the policy %s: %s", policy, "\n".join(certificate.lines))
    return certificate


def _finding(template: ChatTemplate, name: str, forms: Sequence[Form]) -> Finding:
    turns = [place for place, one in enumerate(forms) if one.role == "assistant"]
    offered = any(one.calls for one in forms)
    breaks: list[Break] = []
    try:
        for last, following in zip(turns, [*turns[1:], len(forms)], strict=True):
            appended = forms[last + 1 : following]
            if appended and (why := broken(template, tuple(forms[:following]), last, offered)):
                breaks.append(Break(tuple(dict.fromkeys(one.role for one in appended)), why))
    except RowError as err:
        return Finding(name, len(turns), 0, tuple(breaks), str(err.__cause__ or err))
    return Finding(name, len(turns), 1 + len(breaks), tuple(breaks), "")


def _outcome(finding: Finding) -> str:
    if finding.refused:
        return f"cannot be rendered: {finding.refused}"
    if not finding.breaks:
        return f"1 row of {finding.turns} turns"
    roles: dict[str, set[str]] = {}
    for one in finding.breaks:
        roles.setdefault(one.why, set()).update(one.roles)
    reasons = "; ".join(f"{', '.join(sorted(which))} message: {why}" for why, which in roles.items())
    return f"{finding.rows} rows of {finding.turns} turns ({reasons})"
