"""The page about exit codes, from the errors: `python -m docs.pages.exit_codes > docs/exit_codes.md`."""

from __future__ import annotations

from rft_data.core import errors
from rft_data.core.errors import RftError
from rft_data.run.control import STOPPED_EXIT

MEANING = {
    0: ("done", "nothing"),
    1: (
        "failed at run time, or a check found something wrong",
        "read the message; the log has the traceback",
    ),
    2: ("the command line or the recipe is not valid, or what it names does not exist", "correct it"),
    3: ("something is missing on this machine", "install what the message names"),
    4: (
        "refused: another process is at work here, or a run cannot be continued so",
        "do what the message says",
    ),
    75: ("a passing condition: no room, a deadline passed, a process died", "`rft resume RUN_DIR`"),
    STOPPED_EXIT: ("stopped, as asked", "`rft resume RUN_DIR`"),
}
"""Exit code to what it means and what to do."""

_TEXT = """
A script may continue a run after 75 and 130 without asking a person.

A run that was asked to stop (Ctrl-C, SIGTERM, `rft stop`) ends with 130, whether it finished what was under
way and wrote a checkpoint (asked once) or ended at once (asked twice, `rft stop --now`): in both cases
`rft resume` continues it, from that checkpoint or from the one before. A stop that comes when the last step
is done changes nothing: 0. `rft status` says which it was.

`rft buffer verify` and `rft buffer books` end with 1 when they find damage or rollouts that do not add up;
`rft status`, `rft stop` and `rft logs` end with 0 whatever the run's own state is, and with 2 when there is
no such run. A process that is killed from outside shows the shell's code (137 for SIGKILL).

Written by `python -m docs.pages.exit_codes` from `rft_data/core/errors.py`; a test compares them.
"""


def page() -> str:
    """The whole page as Markdown."""
    rows = [
        f"| {code} | {meaning} | {', '.join(f'`{name}`' for name in names(code))} | {action} |"
        for code, (meaning, action) in sorted(MEANING.items())
    ]
    head = [
        "# Exit codes",
        "",
        "Every failure ends with a code that is not 0 and a message on stderr; a run's traceback is in its",
        "`log.txt`.",
        "",
        "| code | meaning | errors | what to do |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n" + _TEXT


def names(code: int) -> list[str]:
    """Our errors that end a command with `code`."""
    known = (item for item in vars(errors).values() if isinstance(item, type))
    return sorted(e.__name__ for e in known if issubclass(e, RftError) and e.exit_code == code)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
