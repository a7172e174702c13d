"""The errors that this package raises, with their exit codes on the command line.

Each class also inherits the matching built-in error, so callers may catch either. The message says
the thing, what was found, what was wanted, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class RftError(Exception):
    """Base of every deliberate failure. Exit code 1: failed at run time."""

    exit_code = 1


class RecipeError(RftError, ValueError):
    """A recipe or a command-line argument is not valid."""

    exit_code = 2
    mistakes: Sequence[Mapping[str, object]] = ()
    """`file`, `line`, `column`, `key` and `message` of each mistake of a recipe; no file: command line."""


class UnknownComponentError(RftError, LookupError):
    """A recipe names a component that does not exist."""

    exit_code = 2


class MissingFileError(RftError, FileNotFoundError):
    """A file or folder that was named does not exist."""

    exit_code = 2


class MissingExtraError(RftError, ImportError):
    """A package that this role needs is not installed."""

    exit_code = 3


class BusyError(RftError, BlockingIOError):
    """Another process owns the run or the buffer."""

    exit_code = 4


class ResumeError(RftError, ValueError):
    """A run cannot be continued as asked."""

    exit_code = 4


class RowError(RftError, ValueError):
    """A row does not fit its table's contract."""


class ContextOverflow(RowError):
    """A conversation leaves the model no room for another token."""


class BudgetSpent(RowError):
    """A rollout has sampled all the tokens it may."""


class ConflictError(RftError, ValueError):
    """An id that is already stored came again with other content."""


class IntegrityError(RftError, ValueError):
    """Stored bytes do not match their digest."""


class DiskFullError(RftError, OSError):
    """The disk is full; all acknowledged rows are stored."""

    exit_code = 75


class FencedError(RftError, PermissionError):
    """An owner or a consumer was replaced; the older one may not write any more."""

    exit_code = 4


class TokenError(RftError, PermissionError):
    """A hub refused the token of a client, or a call that the token's role may not make."""

    exit_code = 4


class ParityError(RftError, ValueError):
    """An engine's logprobs do not match the weights it was told to serve."""


class EngineError(RftError, RuntimeError):
    """An engine was used in a way or at a time it does not allow, or has broken down."""


class EndpointError(RftError, RuntimeError):
    """An endpoint would refuse any call, or answered none of many: its key, its model, a spent budget."""


class SandboxError(RftError, RuntimeError):
    """Programs cannot be run safely here, or the process that runs them broke down."""


class OperatorError(RftError, RuntimeError):
    """An operator broke its contract on a batch."""


class TrainingError(RftError, RuntimeError):
    """The trainer could not take a step (for example a loss that is not finite)."""


class RoleDiedError(RftError, ConnectionError):
    """The process of a role (an explorer, the trainer) ended or went silent."""

    exit_code = 75


class TrainerDiedError(RoleDiedError):
    """The trainer's process ended or went silent; the run goes on from its newest checkpoint."""


class Stopped(RftError):
    """The run was asked to stop, and has stopped at a checkpoint."""

    exit_code = 130


class StalledError(RftError, TimeoutError):
    """A wait passed its deadline."""

    exit_code = 75
