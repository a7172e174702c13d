"""Users of recipes/served_cpu.yaml: they ask for sums through OpenAI's client, and like answers with working.

python recipes/sums_users.py --port 8009     (RFT_SERVE_TOKEN as for the run)
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter

import httpx
import openai


def question(dice: random.Random) -> str:
    """Question of a user."""
    terms = [dice.randint(1, 9), *(dice.choice((-1, 1)) * dice.randint(1, 9) for _ in range(2))]
    text = " ".join(f"{'+' if term > 0 else '-'} {abs(term)}" for term in terms).removeprefix("+ ")
    return f"State the final answer to the following arithmetic problem: {text} ="


def visit(http: httpx.Client, dice: random.Random) -> bool:
    """Ask, read, and give a thumb; returns whether the answer was liked."""
    opened = http.post("/trajectories").raise_for_status().json()
    with openai.OpenAI(base_url=opened["base_url"], api_key=opened["key"], max_retries=0) as client:
        reply = client.chat.completions.create(
            model="policy", messages=[{"role": "user", "content": question(dice)}]
        )
    working, _, answer = (reply.choices[0].message.content or "").partition("####")
    liked = "=" in working and answer.strip() != ""
    key = {"authorization": f"Bearer {opened['key']}"}
    http.post(
        f"/trajectories/{opened['id']}/end", headers=key, json={"reward": float(liked)}
    ).raise_for_status()
    return liked


class Users:
    """Users who come one after another, some at a time, until the server ends."""

    def __init__(self, base: str, token: str, seed: int) -> None:
        self._base = base
        self._token = {"authorization": f"Bearer {token}"}
        self._seed = seed
        self.visits: list[bool] = []
        """Whether each answer was liked."""
        self.troubles: Counter[str] = Counter()
        """Visits that failed, not counting the last ones of a server that ends."""

    def come(self, number: int, visits: int) -> None:
        """So many visits, or until the server has gone."""
        dice = random.Random(f"{self._seed}:{number}")  # noqa: S311 - a simulation
        with httpx.Client(base_url=self._base, headers=self._token, timeout=60) as http:
            while not self._is_there(http):
                time.sleep(0.5)
            failed: Counter[str] = Counter()
            for _ in range(visits):
                try:
                    self.visits.append(visit(http, dice))
                    self.troubles += failed  # the server went on after them
                    failed.clear()
                except (httpx.HTTPError, openai.OpenAIError) as err:
                    if not self._is_there(http):
                        return
                    failed[type(err).__name__] += 1
                    time.sleep(0.2)
            self.troubles += failed

    @staticmethod
    def _is_there(http: httpx.Client) -> bool:
        try:
            return http.get("/health").is_success
        except httpx.TransportError:
            return False


def main() -> None:
    """Play the users and say how many answers they liked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--users", type=int, default=8, help="so many at a time")
    parser.add_argument("--visits", type=int, default=1000, help="of each user, at most")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    users = Users(f"http://127.0.0.1:{asked.port}", os.environ["RFT_SERVE_TOKEN"], asked.seed)
    threads = [threading.Thread(target=users.come, args=(n, asked.visits)) for n in range(asked.users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first in range(0, len(users.visits), 100):
        some = users.visits[first : first + 100]
        share = 100 * sum(some) / len(some)
        sys.stdout.write(f"visits {first:>5} to {first + len(some):>5}: {share:5.1f} % liked\n")
    sys.stdout.write(f"visits that failed: {dict(users.troubles) or 'none'}\n")


if __name__ == "__main__":
    main()
