"""Stands in for people who rate answers while a run goes on: `python recipes/rater.py hub://HOST:PORT`.

It reads the answers that wait for a reward, and sends a rating of each to the run's hub, as an app would. The
rating is 1.0 for a right answer. The environment variable RFT_HUB_TOKEN holds a token for feedback:
`rft token feedback --name rater` makes one from the run's secret.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from rft_data import EXPERIENCES, Feedback, HubClient, StalledError, parse_text

_WAITING = parse_text("source = 'rollout' and reward is null and unscored_reason is null", EXPERIENCES)
_COLUMNS = ["experience_id", "messages", "completion_text", "reward_parts"]
_START_S, _AWAY_S = 600.0, 30.0
"""How long the run may need to start, and how long it may be out of reach after that, before this ends."""


def rating(row: Mapping[str, Any]) -> float:
    """What a person would say about `completion_text`, the answer to `messages`; here: is it right."""
    return float(json.loads(row["reward_parts"])["exact_answer"])


def rate(address: str, token: str, *, author: str = "rater", pause_s: float = 1.0) -> int:
    """Rate whatever waits, until the run has ended; returns how many answers were rated."""
    rated: set[str] = set()
    patience_s = _START_S
    with HubClient(address, token) as hub:
        while True:
            try:
                rows = hub.read("experiences", _COLUMNS, _WAITING, deadline_s=patience_s).to_pylist()
                patience_s = _AWAY_S
                fresh = [row for row in rows if row["experience_id"] not in rated]
                said = [Feedback(row["experience_id"], author, "reward", rating(row)) for row in fresh]
                if said:
                    hub.add_feedback(said, deadline_s=patience_s)
            except StalledError:
                return len(rated)
            rated.update(row["experience_id"] for row in fresh)
            time.sleep(pause_s)


if __name__ == "__main__":
    sys.stdout.write(f"{rate(sys.argv[1], os.environ['RFT_HUB_TOKEN'])} answers were rated.\n")
