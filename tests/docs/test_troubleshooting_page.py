"""The page of our errors is current, and has a part for each of them."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from docs.pages.troubleshooting import page
from rft_data.cli.app import app
from rft_data.cli.troubles import TROUBLES, code
from rft_data.core import errors
from rft_data.core.errors import RftError
from rft_data.tasks.selectors.interfaces import NoTasksError

ROOT = Path(__file__).parents[2]


def test_page_in_docs_is_the_one_the_errors_make() -> None:
    written = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert written == page(), "run `python -m docs.pages.troubleshooting > docs/troubleshooting.md`"


def test_every_error_has_a_code_of_its_own_and_a_part_of_the_page() -> None:
    ours = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RftError)}
    assert {trouble.kind for trouble in TROUBLES} == ours
    assert len({trouble.code for trouble in TROUBLES}) == len(TROUBLES)
    assert all(trouble.causes and trouble.actions for trouble in TROUBLES)


def test_an_error_defined_elsewhere_has_the_code_of_its_base() -> None:
    assert code(NoTasksError("no task")) == "recipe"
    assert code(errors.TrainerDiedError("gone")) == "trainer-died"


def test_a_failed_command_names_the_code_and_help_prints_its_part(tmp_path: Path) -> None:
    failed = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert failed.exit_code == 2
    assert (
        failed.stderr.splitlines()[-1] == "help: rft help missing-file (docs/troubleshooting.md#missing-file)"
    )
    shown = CliRunner().invoke(app, ["help", "missing-file"])
    assert shown.exit_code == 0
    assert "Usual causes:" in shown.stdout
    assert shown.stdout.strip() in page()


def test_an_unknown_code_is_answered_with_the_nearest() -> None:
    asked = CliRunner().invoke(app, ["help", "disk-ful"])
    assert asked.exit_code == 2
    assert "did you mean 'disk-full'" in asked.stderr
