"""The page of our errors: `python -m docs.pages.troubleshooting > docs/troubleshooting.md`."""

from __future__ import annotations

from rft_data.cli.troubles import TROUBLES, trouble_text

_HEAD = """\
# Troubleshooting

A command that fails says `error:` with what is wrong, then `help: rft help CODE`, which prints the part of
this page with the code's name. The message itself names the thing, what was found and what was wanted; start
there. Written by `python -m docs.pages.troubleshooting` from `rft_data/cli/troubles.py`; a test compares
them. Exit codes: [exit_codes.md](exit_codes.md). What breaks and what is kept: [faults.md](faults.md).
"""


def page() -> str:
    """The whole page as Markdown."""
    return "\n".join([_HEAD, *(f"## {found.code}\n\n{trouble_text(found)}\n" for found in TROUBLES)])


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
