"""The closed sets of words that rows, logs and reports hold, as types.

Each member is the text that is stored: what Arrow and JSON hold and a terminal shows is the plain word, and a
word read back compares equal to its member. The value is stored data and never changes; the name may.
`docs/schema.md` lists the words of each column, and a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Literal, TypeAlias, TypeVar, cast

Word = TypeVar("Word", bound=StrEnum)


def member(words: type[Word], text: str) -> Word:
    """The member of `words` for a stored text.

    A text that is none of them stays a plain string: whoever reads a row does not judge it.
    """
    try:
        return words(text)
    except ValueError:
        return cast("Word", text)


# --- rows ------------------------------------------------------------------------------------------


class Split(StrEnum):
    """The use of a task."""

    TRAIN = "train"
    """May be explored and trained on."""
    HELDOUT = "heldout"
    """Evaluation only."""


class RowSource(StrEnum):
    """The origin of an experience."""

    ROLLOUT = "rollout"
    """An explorer of a run sampled it."""
    EXPERT = "expert"
    """A demonstration: the policy did not sample it."""
    IMPORT = "import"
    """Read from files that another program wrote."""
    EVAL = "eval"
    """Sampled to measure the policy."""
    PROBE = "probe"
    """Sampled to look at the policy, outside a measurement."""


TRAINABLE_SOURCES: Final = (RowSource.ROLLOUT, RowSource.IMPORT, RowSource.EXPERT)
"""Rows that a trainer may see."""
MEASURING_SOURCES: Final = (RowSource.EVAL, RowSource.PROBE)
"""Rows that are never trained on, exported or compared with."""


class TemplatePolicy(StrEnum):
    """How a conversation goes on where its template renders history in another way than it was sampled."""

    FORK = "fork"
    """Begin another row with the conversation as the template renders it: what the model will see in use."""
    KEEP_THINKING = "keep_thinking"
    """Go on with the row: the model sees what it sampled, thinking included."""
    REFUSE = "refuse"
    """Refuse to start, and fail a rollout that would need it."""


class Drift(StrEnum):
    """How the history that a caller has differs from what was sampled."""

    EXACT = "exact"
    """Nothing is rewritten: what is new is appended."""
    MASKED = "masked"
    """The end of a turn is rewritten: the caller's text takes its place in the row, without loss."""
    FORKED = "forked"
    """More is rewritten, or the template renders it in another way: another row begins."""


ROLLOUT_SECONDS: Final = "rollout_seconds"
"""Key of the metadata of a rollout's last row: its wall seconds, by phase (`explorers/clock.py`)."""
ARM: Final = "arm"
"""Key of a row's metadata: of which arm of an A/B test its trajectory is; see `Arm`."""
TRAJECTORY: Final = "trajectory"
"""Key of a row's metadata: the id by which a client of a served run knows its trajectory."""
HISTORY_DRIFT: Final = "history_drift"
"""Key of a row's metadata: how many chat calls of its rollout drifted, by `Drift`; left out when none did."""


ENDPOINT: Final = "endpoint"
"""Key of a row's `sampling`: `base_url` and `model` of the endpoint that sampled it. Such a row has no token
ids, no logprobs and no policy version."""


class PairSource(StrEnum):
    """The origin of a preference pair."""

    IMPORT = "import"
    """Read from files that another program wrote."""
    MINED = "mined"
    """Two answers of one group, ordered by their rewards."""
    HUMAN = "human"
    """A person preferred one of two answers."""


class FinishReason(StrEnum):
    """The reason that sampling ended. Engines and files may bring other words, which are kept as they are."""

    STOP = "stop"
    """A stop token or a stop string was sampled."""
    LENGTH = "length"
    """`max_tokens` were sampled: the completion is cut off."""
    ABORT = "abort"
    """The engine gave the request up."""


NOT_SAMPLED: Final = ""
"""`finish_reason` of a row that no engine sampled."""


class FeedbackKey(StrEnum):
    """Keys of feedback that the package itself knows. A key may be any other name too."""

    REWARD = "reward"
    """A reward that was not known when the row was stored."""
    SCORE = "score"
    """A rating."""
    EDIT = "edit"
    """A better text."""
    PREFERRED = "preferred"
    """The better of two answers; the text begins with the id of the other."""
    SKIPPED = "skipped"
    """A person saw the row and gave no answer."""
    COMMENT = "comment"
    """A person's words about the row."""
    THUMB = "thumb"
    """1: good, 0: bad."""
    QUARANTINE = "quarantine"
    """1: not to be trained on, 0: it may be again; the newest counts, whoever said it."""
    RETIRE_TASK = "retire_task"
    """1: the row's task is not to be played, 0: it may be again; the newest counts, whoever said it."""


# --- groups and judgements -------------------------------------------------------------------------


class GroupOutcome(StrEnum):
    """The outcome of a ticket, that is of the rollouts of one task that were sampled together."""

    ARRIVED = "arrived"
    """The group has every rollout it needs."""
    FAILED = "failed"
    """Too many of its rollouts failed."""
    CANCELLED = "cancelled"
    """Its explorer ended, or the run did, before the group was whole; its task is played again."""
    AWAITING = "awaiting"
    """Whole, with rewards still to come as feedback. Never stored; only a starting sampler is told it."""


class GroupState(StrEnum):
    """The state of a group in a sampler. Every admitted group is in exactly one state."""

    OPEN = "open"
    """A ticket is given; the group is not closed."""
    READY = "ready"
    """Closed, and may be leased."""
    LEASED = "leased"
    """In a lease that is not settled."""
    TRAINED = "trained"
    """In a lease that is settled."""
    DROPPED = "dropped"
    """Operators dropped the whole group."""
    STALE = "stale"
    """Past the staleness bound: never to be trained on."""
    FAILED = "failed"
    """Its outcome is `failed`."""
    CANCELLED = "cancelled"
    """Its outcome is `cancelled`, or it was set aside by a resume or a repair."""


ADMITTED: Final = "admitted"
"""Key of a sampler's counts beside the states: the number of groups in all states together."""


class UnscoredCause(StrEnum):
    """The cause of a missing reward. Only `reward` says anything about the task; none about the model."""

    REWARD = "reward"
    """The reward cannot judge this task, or its own code failed: asking again would change nothing."""
    LATER = "later"
    """The reward comes as feedback."""
    INFRASTRUCTURE = "infrastructure"
    """A process, a machine or a connection died."""
    TIMEOUT = "timeout"
    """A deadline passed."""
    JUDGE = "judge"
    """A judging model gave no usable verdict."""


WORLD_FAILURES: Final = (UnscoredCause.INFRASTRUCTURE, UnscoredCause.TIMEOUT, UnscoredCause.JUDGE)
"""Causes that lie in the world around the model: such a reward is asked for again, and counted by cause."""


class Verdict(StrEnum):
    """The decision of an operator pipeline about a row."""

    KEPT = "kept"
    """It may be trained on."""
    DROPPED = "dropped"
    """An operator dropped it, with a reason."""
    MASKED = "masked"
    """Kept without its tokens entering a loss. Pipelines of this package say so in the column `masked`."""
    QUARANTINED = "quarantined"
    """An operator failed on it."""


class BurnCause(StrEnum):
    """The cause of a rollout's wasted cost: parts of the metrics `burned_tokens` and `burned_s`."""

    CANCELLED = "cancelled"
    """It was not finished when its group was complete, had failed or was given up."""
    SURPLUS = "surplus"
    """It arrived when its group was complete."""
    FAILED = "failed"
    """Its workflow, or the engine, raised."""
    TIMEOUT = "timeout"
    """It was not finished at its deadline, or its workflow raised TimeoutError."""
    RETRIED = "retried"
    """An attempt failed, and the rollout was played again."""
    GROUP_FAILED = "group_failed"
    """It arrived in a group that failed."""
    STALE = "stale"
    """It arrived, and its group grew too old to be trained on."""


# --- leases ----------------------------------------------------------------------------------------


class LeaseEvent(StrEnum):
    """One entry of the lease log."""

    ATTACH = "attach"
    """A consumer starts; older holders of its name are fenced."""
    GRANT = "grant"
    """Groups are leased to a consumer for one step."""
    RELEASE = "release"
    """A lease ends without training."""
    RETIRE = "retire"
    """Groups may never be leased to the consumer."""


class LeaseState(StrEnum):
    """The state of a lease."""

    GRANTED = "granted"
    """Granted; no checkpoint holds its step."""
    RELEASED = "released"
    """Ended without training."""
    TRAINED = "trained"
    """A checkpoint holds its step."""


# --- rollouts of many turns ------------------------------------------------------------------------


class RolloutEnd(StrEnum):
    """The reason that a rollout of many turns ended; key `end` of its rows' metadata."""

    FINISHED = "finished"
    """The model gave its last answer, the environment was over, or the function returned."""
    TURNS = "turns"
    """It had the most turns that it may have."""
    BUDGET = "budget"
    """It sampled the most tokens that it may sample."""
    CONTEXT = "context"
    """The conversation left no room for another turn."""
    DEADLINE = "deadline"
    """Its client made no request for so long that the server closed it."""


class ToolFailure(StrEnum):
    """The reason that a tool call gave no value; keys of `tool_failures` in the rows' metadata."""

    UNKNOWN = "unknown"
    """No tool has its name."""
    MALFORMED = "malformed"
    """It is no valid call, or has other arguments than the tool takes."""
    RAISED = "raised"
    """The tool raised an error."""
    LATE = "late"
    """It took longer than its deadline, or an earlier call that did still runs."""


# --- programs that a model wrote -----------------------------------------------------------------


class SandboxKind(StrEnum):
    """The barrier between a program that a model wrote and the machine it runs on."""

    BUBBLEWRAP = "bubblewrap"
    """Namespaces of its own, through the command `bwrap`."""
    LANDLOCK = "landlock"
    """Landlock and seccomp, through the package sandlock."""
    NONE = "none"
    """Nothing but limits of resources: for programs that are trusted."""


class ProgramEnd(StrEnum):
    """How a program in a sandbox ended."""

    EXITED = "exited"
    """By itself, with a status."""
    KILLED = "killed"
    """By a signal: its own fault, or a limit of memory, processor time or file size."""
    TIMEOUT = "timeout"
    """It ran longer than it may."""
    OUTPUT = "output"
    """It wrote more to stdout or stderr than it may."""
    DISK = "disk"
    """Its working folder held more than it may."""


# --- machines --------------------------------------------------------------------------------------


class Health(StrEnum):
    """Result of one check of `rft doctor`."""

    OK = "ok"
    """As it should be."""
    NOTE = "note"
    """Something is not there or slow; runs that do not need it are as good."""
    BAD = "bad"
    """A run would fail."""


# --- runs ------------------------------------------------------------------------------------------


class Mode(StrEnum):
    """The purpose of a run; the key `mode` of its recipe."""

    ONLINE = "online"
    """Explores and trains."""
    EXPLORE = "explore"
    """Explores and stores, for trainers elsewhere or later."""
    TRAIN = "train"
    """Trains by reinforcement on what others explored."""
    OFFLINE = "offline"
    """Trains on stored rows and pairs."""
    EVAL = "eval"
    """Measures models."""
    DATA = "data"
    """Makes a buffer of tasks and scored rows; `rft data run` runs it."""


class RunState(StrEnum):
    """The state of a run's process in `rft status`."""

    RUNNING = "running"
    """At work."""
    STOPPING = "stopping"
    """It was asked to stop, finishes its work in flight and writes a checkpoint."""
    STOPPED = "stopped"
    """It ended because it was asked to."""
    FINISHED = "finished"
    """It did everything its recipe asks for."""
    FAILED = "failed"
    """It ended with an error."""
    DIED = "died"
    """Its process ended without recording a reason."""
    SILENT = "silent"
    """Its process holds the run but has written no sign of life for a while."""
    UNKNOWN = "unknown"
    """It never wrote a record, and no process holds it."""


class StopRequest(StrEnum):
    """A request to a run."""

    DRAIN = "drain"
    """Finish the work in flight, write a checkpoint, end."""
    NOW = "now"
    """End at once."""


class RunPhase(StrEnum):
    """Parts of a run whose wall seconds its summary gives; offline stages are named by algorithm."""

    CHECKS = "checks"
    """Everything that can be refused before a model is loaded."""
    TASKS = "tasks"
    """Reading and preparing the tasks."""
    ENGINE_START = "engine_start"
    """Starting the explorers."""
    RL = "rl"
    """The online stage, with the evaluations during it."""
    EVALUATION = "evaluation"
    """Measuring models on held-out tasks."""


class RunMilestone(StrEnum):
    """Parts of a run that are done once and noted in `progress.json`, beside the names of offline stages."""

    START = "start"
    """The base model is measured (and published, where versions are)."""
    RL = "grpo"
    """The online stage. Every algorithm is noted under this name."""
    PUBLISH = "publish"
    """The model of the last offline stage is published."""
    FINAL = "final"
    """The final model is merged into one folder."""


class HubRole(StrEnum):
    """The rights of a hub's client; its token says them. `placement/hub/access.py` has the calls of each."""

    OWNER = "owner"
    """Everything: the run itself, and who has its secret."""
    EXPLORER = "explorer"
    """Stores rollouts; reads no rows, only models and weights."""
    LEARNER = "learner"
    """The trainer's process of a run: reads rows, and hands in weights and checkpoints."""
    TRAINER = "trainer"
    """A run of mode `train` elsewhere: reads, takes leases, writes versions and metrics."""
    READER = "reader"
    """Reads rows."""
    FEEDBACK = "feedback"
    """Reads rows and says something about them."""
    CURATOR = "curator"
    """The same, and decides what is trained on: corrects, quarantines and readmits rows, retires tasks."""


class MetricRole(StrEnum):
    """The subject of a number in `metrics`. The roles of an explorer fleet begin with `explorer`."""

    TRAINER = "trainer"
    """The trainer's step."""
    EXPLORER = "explorer"
    """Sampling and scoring."""
    OPS = "ops"
    """Operators."""
    SAMPLER = "sampler"
    """Groups by state, staleness."""
    SELECTOR = "selector"
    """The choice of tasks."""
    LOOP = "loop"
    """One step of the run after another: its clock, its policy version, its idle time."""
    SECONDS = "seconds"
    """Wall seconds of the last step, by what the run was doing."""
    RUN = "run"
    """Measured on held-out data, between the stages of a run or after a step."""


SwapMode: TypeAlias = Literal["drain", "continue", "recompute"]
"""The fate of requests in flight when an engine loads new weights."""
OldLogprobs: TypeAlias = Literal["rollout", "recompute"]
"""The old policy of a ratio: the one that sampled, or the weights before the step."""
Importance: TypeAlias = Literal["none", "token_truncated", "sequence_truncated", "masked"]
"""How advantages are weighed by the ratio of the old policy to the one that sampled."""
PairsFrom: TypeAlias = Literal["stored", "mined"]
"""Preference pairs of the table `preferences`, or of the best and the worst row of each group."""
