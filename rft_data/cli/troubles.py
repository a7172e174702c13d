"""What to do about each of our errors: shown by `rft help CODE`, and the page docs/troubleshooting.md.

A code is part of what a command says, and does not change when a class is renamed.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

from rft_data.core import errors
from rft_data.core.errors import RftError
from rft_data.core.lookup import lookup

PAGE = "docs/troubleshooting.md"
"""Has a heading for each code."""
_SEE_LOG = "`rft logs RUN_DIR` has the traceback; `rft -v COMMAND` prints it."
_RESUME = "`rft resume RUN_DIR` goes on from the newest checkpoint."


class Trouble(NamedTuple):
    """A kind of error."""

    kind: type[RftError]
    code: str
    causes: Sequence[str]
    """Usual ones, the most frequent first."""
    actions: Sequence[str]


TROUBLES = (
    Trouble(
        errors.RecipeError,
        "recipe",
        ("A key or a value of the recipe is wrong.", "Two settings contradict each other."),
        (
            "Mend what the message names: it gives file and line.",
            "`rft recipe validate RECIPE` finds all mistakes at once, `--deep` also those of TRL and vLLM.",
            "`docs/recipe.md` has every key.",
        ),
    ),
    Trouble(
        errors.UnknownComponentError,
        "unknown-component",
        ("A name is misspelt.", "An own class is not where its import path says."),
        (
            "Take a name that the message lists.",
            "Your own: `package.module:Class`, or `./file.py:Class` beside the recipe.",
        ),
    ),
    Trouble(
        errors.MissingFileError,
        "missing-file",
        ("A path is meant from another folder.", "A model or data set was not downloaded."),
        ("Correct the path, or run the command where the path is right.",),
    ),
    Trouble(
        errors.MissingExtraError,
        "missing-extra",
        ("A part needs a package that is not installed.",),
        ("Install what the message names.", "`rft doctor` lists what each extra would add."),
    ),
    Trouble(
        errors.BusyError,
        "busy",
        ("Another process runs this run, or writes this buffer.", "A port is taken."),
        ("`rft status RUN_DIR` says which process.", "Wait for it, or `rft stop RUN_DIR`."),
    ),
    Trouble(
        errors.ResumeError,
        "resume",
        ("The recipe is not the one that the run began with.", "A file of the run is damaged."),
        (
            "Take the recipe back, or give the run another `name`.",
            "`--fresh` moves the old run aside and starts over.",
        ),
    ),
    Trouble(
        errors.RowError,
        "row",
        ("A workflow, an importer or an operator made a row that its table does not take.",),
        ("Compare the row with `docs/schema.md`.", "`rft debug task` plays one task and shows its rows."),
    ),
    Trouble(
        errors.ContextOverflow,
        "context-overflow",
        ("A prompt, or a conversation of many turns, is as long as `max_model_len`.",),
        ("Raise `explorer.engine.max_model_len`, or leave long tasks out.",),
    ),
    Trouble(
        errors.BudgetSpent,
        "budget-spent",
        ("A rollout of many turns sampled all the tokens it may.",),
        ("Raise the rollout's budget of tokens, or let it take fewer turns.",),
    ),
    Trouble(
        errors.ConflictError,
        "conflict",
        ("The same data was imported twice with changes.", "Two runs of one name write one buffer."),
        ("Give the run, or the import, a name of its own.",),
    ),
    Trouble(
        errors.IntegrityError,
        "integrity",
        ("Bytes on the disk changed: a bad disk, or a copy that was cut off.", "Files were edited by hand."),
        ("`rft buffer verify BUFFER` says what is damaged.", "`rft buffer repair BUFFER` sets it aside."),
    ),
    Trouble(
        errors.DiskFullError,
        "disk-full",
        ("The disk of the run's folder or of its buffer is full.",),
        (
            "Make room; nothing acknowledged is lost.",
            "`rft buffer compact BUFFER` drops old versions.",
            _RESUME,
        ),
    ),
    Trouble(
        errors.FencedError,
        "fenced",
        ("A newer owner or trainer took this one's place: this one was thought dead.",),
        ("Look which process runs now: `rft status RUN_DIR`.", "End the older one."),
    ),
    Trouble(
        errors.TokenError,
        "token",
        ("RFT_HUB_TOKEN is not set, is of another run, or is of a role that may not do this.",),
        ("Make one where the secret is: `rft token trainer --name NAME`.",),
    ),
    Trouble(
        errors.ParityError,
        "parity",
        ("The engine and the trainer compute in different precisions.", "The engine serves other weights."),
        (
            "Compare `explorer.engine` (dtype, quantization) with the trainer's.",
            "`docs/weights.md` says how the proof is made.",
        ),
    ),
    Trouble(
        errors.EngineError,
        "engine",
        ("The engine does not fit into memory.", "Its process ended, or an option is not for this machine."),
        (
            "`rft debug engine RECIPE` starts the engine alone.",
            "`rft recipe explain RECIPE` computes its memory.",
            _SEE_LOG,
        ),
    ),
    Trouble(
        errors.EndpointError,
        "endpoint",
        ("The key is wrong, the model has another name there, or the budget is spent.",),
        ("Try the address and the key with one request.", "Raise the budget in the recipe."),
    ),
    Trouble(
        errors.SandboxError,
        "sandbox",
        ("This machine has none of the kinds of sandbox, or forbids them.",),
        (
            "`rft doctor` says which there are and why others are not.",
            "`docs/sandbox.md` has what each takes.",
        ),
    ),
    Trouble(
        errors.OperatorError,
        "operator",
        ("An operator raised, or did not give back one verdict for each row.",),
        (
            "`rft debug op NAME` runs it on one batch.",
            "`rft ops show NAME` has its arguments and an example.",
        ),
    ),
    Trouble(
        errors.TrainingError,
        "training",
        (
            "The loss or a gradient is not finite: the learning rate is too high, or a reward is not finite.",
            "TRL does not take an option under `trl`.",
            "No row is left to train on.",
        ),
        ("Lower `learning_rate`; look at `grad_norm` of the steps before.", _RESUME),
    ),
    Trouble(
        errors.RoleDiedError,
        "role-died",
        ("The system killed a process because memory ran out.", "A process crashed, or its machine is gone."),
        (
            _RESUME,
            "Look for `killed` in the system's log; give roles less memory or fewer processes.",
            _SEE_LOG,
        ),
    ),
    Trouble(
        errors.TrainerDiedError,
        "trainer-died",
        ("As role-died; the trainer died again and again between two checkpoints.",),
        (_RESUME, "Lower `per_device_train_batch_size`, or write checkpoints more often."),
    ),
    Trouble(
        errors.Stopped,
        "stopped",
        ("Ctrl-C, SIGTERM or `rft stop`.",),
        (_RESUME,),
    ),
    Trouble(
        errors.StalledError,
        "stalled",
        ("A part is slower than its deadline.", "An endpoint, a reward or an environment does not answer."),
        (
            "`rft status RUN_DIR` and `rft logs RUN_DIR` say what the run was waiting for.",
            "Raise the deadline in `deadlines` if the work is only slow.",
            _RESUME,
        ),
    ),
    Trouble(
        RftError,
        "failed",
        ("None of the kinds above.",),
        (_SEE_LOG,),
    ),
)
"""Every error of rft_data/core/errors.py."""


def code(err: RftError) -> str:
    """The code of an error: that of its class, or of the nearest base class that has one."""
    codes = {trouble.kind: trouble.code for trouble in TROUBLES}
    return next(codes[kind] for kind in type(err).__mro__ if kind in codes)


def trouble_named(code: str) -> Trouble:
    """The kind of error with this code. Raises: UnknownComponentError."""
    found: Trouble = lookup(code, {trouble.code: trouble for trouble in TROUBLES}, "error code")
    return found


def trouble_facts(trouble: Trouble) -> dict[str, object]:
    """The same as `trouble_text`, for programs."""
    return {
        "code": trouble.code,
        "exit_code": trouble.kind.exit_code,
        "means": inspect.getdoc(trouble.kind),
        "causes": list(trouble.causes),
        "actions": list(trouble.actions),
    }


def trouble_text(trouble: Trouble) -> str:
    """Meaning of the error, its usual causes and the mend, as Markdown without a heading."""
    return "\n".join(
        [
            f"{inspect.getdoc(trouble.kind)} Exit code {trouble.kind.exit_code} (`{trouble.kind.__name__}`)."
            if trouble.kind is not RftError
            else f"A failure that has no kind of its own. Exit code {RftError.exit_code} (`RftError`).",
            "",
            "Usual causes:",
            "",
            *(f"- {cause}" for cause in trouble.causes),
            "",
            "What to do:",
            "",
            *(f"- {action}" for action in trouble.actions),
        ]
    )
