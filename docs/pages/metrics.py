"""The page of TRL's log names and ours: `python -m docs.pages.metrics > docs/metrics.md`."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """A number that TRL logs."""

    trl: str
    ours: str
    """Empty: the same name."""
    note: str
    always: bool = True
    """Whether every step of GRPO reports it."""


NOT_OURS = "-"
ONLINE = (
    Name("loss", "", ""),
    Name("grad_norm", "", "before clipping"),
    Name("learning_rate", "", ""),
    Name("step_time", "", "seconds of forward and backward passes; `step_s` is the whole step"),
    Name("num_tokens", "", "tokens of all leases so far, prompts included; goes on after a resume"),
    Name("completions/mean_length", "", "tokens after the prompt, over the rows of the step"),
    Name("completions/min_length", "", ""),
    Name("completions/max_length", "", ""),
    Name("completions/clipped_ratio", "", "share of rows whose finish reason is `length` or `abort`"),
    Name("completions/mean_terminated_length", "", "of rows that ended by themselves; 0 where none did"),
    Name("completions/min_terminated_length", "", ""),
    Name("completions/max_terminated_length", "", ""),
    Name("rewards/NAME/mean", "", "a component before its weight, over the rows that have it"),
    Name("rewards/NAME/std", "", "of a sample, as in TRL"),
    Name(
        "reward",
        "",
        "of the rows trained on; `loop/rollout_reward`: of all that arrived since the step before",
    ),
    Name("reward_std", "", ""),
    Name("frac_reward_zero_std", "", "of the rows trained on; `loop/frac_solved_*` are of all groups"),
    Name("entropy", "", "nats a token"),
    Name("kl", "", "to the reference model, where there is one", False),
    Name("clip_ratio/low_mean", "", ""),
    Name("clip_ratio/low_min", "", ""),
    Name("clip_ratio/high_mean", "", ""),
    Name("clip_ratio/high_max", "", ""),
    Name("clip_ratio/region_mean", "", ""),
    Name("sampling/sampling_logp_difference/mean", "", "trainer against engine, nats, over sampled tokens"),
    Name("sampling/sampling_logp_difference/max", "", ""),
    Name("sampling/importance_sampling_ratio/min", "", "before a cap; TRL's is after it"),
    Name("sampling/importance_sampling_ratio/mean", "", "also `/p99`"),
    Name("sampling/importance_sampling_ratio/max", "", ""),
    Name("policy_loss", "", "where TRL's loss logs it, as the next four", False),
    Name("entropy_coef", "", "", False),
    Name("aux_loss", "", "", False),
    Name("cispo_clip_ratio", "", "", False),
    Name("vespo/phi_seq_mean", "", "", False),
    Name("tools/call_frequency", NOT_OURS, "calls are in the rows' `messages`", False),
    Name("tools/failure_frequency", NOT_OURS, "see above", False),
)
"""Of GRPOTrainer."""
OFFLINE = (
    Name("entropy", "", ""),
    Name("num_tokens", NOT_OURS, "TRL's count begins anew when a stage is resumed"),
    Name("mean_token_accuracy", "", "sft, dpo"),
    Name("rewards/chosen", "", "dpo, kto"),
    Name("rewards/rejected", "", "dpo, kto"),
    Name("rewards/accuracies", "", "dpo"),
    Name("rewards/margins", "", "dpo, kto"),
    Name("logps/chosen", "", "dpo, kto"),
    Name("logps/rejected", "", "dpo, kto"),
    Name("logits/chosen", "", "dpo, kto"),
    Name("logits/rejected", "", "dpo, kto"),
    Name("kl", "", "kto"),
    Name("min_reward", "", "reward model, as the next four"),
    Name("mean_reward", "", ""),
    Name("max_reward", "", ""),
    Name("accuracy", "", ""),
    Name("margin", "", ""),
    Name("aux_loss", "", ""),
)
"""Of SFTTrainer, DPOTrainer, KTOTrainer and RewardTrainer."""

_HEAD = """\
# Names of numbers: TRL's and ours

A number that TRL logs has TRL's name here, so that a dashboard made for TRL shows our runs. All other
numbers: [monitoring.md](monitoring.md).
"""


_TAIL = """
## Where they are shown

In the buffer's `metrics` table these are numbers of role `trainer`. Trackers get them under the bare name, as
TRL gives them (wandb, trackio, swanlab and tensorboard show `train/reward`), and numbers of other roles as
`ROLE/KEY` (`train/sampler/lag_mean`). Figures of held-out tasks during a run (role `run`,
`heldout/reward`) are `eval_reward` there, which they show as `eval/reward`. A name
under which there are others ends with `/all` (`ops/seconds/all` beside `ops/seconds/NAME`).

Runs of 0.6 and older stored `completions/mean_length` as `completion_tokens` and
`sampling/importance_sampling_ratio/X` as `ratio/X`, and showed `trainer/KEY` in trackers.

Written by `python -m docs.pages.metrics`; a test compares the tables with the names in TRL's source, and
another with what a step reports.
"""


def page() -> str:
    """The whole page as Markdown."""
    stage = "The keys of an offline stage begin with the stage's name: `0-sft/loss`."
    parts = [_HEAD, "## A step of GRPO", "", *_table(ONLINE), "", "## Offline stages", "", stage, ""]
    return "\n".join([*parts, *_table(OFFLINE), _TAIL])


def _table(names: tuple[Name, ...]) -> list[str]:
    rows = [f"| `{name.trl}` | {name.ours or 'the same'} | {name.note} |" for name in names]
    return ["| TRL | here | |", "|---|---|---|", *rows]


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 - the page is the output
