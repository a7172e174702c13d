"""Stands in for a judging language model: `python recipes/stand_in_judge.py --port 8701`.

It speaks the protocol of OpenAI's chat endpoint, so that recipes/sums_judge.yaml runs without a model. The
verdict is a rule: 10 times the share of steps such as `4+3=7` that are true, and 0 for an answer without any.
"""

from __future__ import annotations

import argparse
import json
import re
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_SOLUTION = re.compile(r"\[Solution\]\n(.*?)\n\nJudge", re.DOTALL)
_STEP = re.compile(r"(-?\d+)([+-])(-?\d+)=(-?\d+)")


def verdict(prompt: str) -> str:
    """The reply to the default prompt of the reward `llm_judge`: `Score: <0 to 10>`."""
    found = _SOLUTION.search(prompt)
    steps = _STEP.findall(found[1]) if found else []
    true = [int(a) + (int(b) if sign == "+" else -int(b)) == int(total) for a, sign, b, total in steps]
    return f"Score: {10 * sum(true) / len(true) if true else 0:g}"


class StandIn(BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One verdict on the last message."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = verdict(asked["messages"][-1]["content"])
        answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": said}}]}
        body = json.dumps({**answer, "usage": {"total_tokens": 0}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def main() -> None:
    """Serve on loopback until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8701)
    port: int = parser.parse_args().port
    with ThreadingHTTPServer(("127.0.0.1", port), StandIn) as server, suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
