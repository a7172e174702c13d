"""A small web application over the model of a served run: ask, read the answer, and say whether it was good.

python recipes/served_app.py --server http://127.0.0.1:8009 --port 8080     (RFT_SERVE_TOKEN as for the run)

Each question is a trajectory of recipes/served_cpu.yaml (or of `rft serve`), and each thumb its reward. The
token stays in this process: a browser hears only of its own answers.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import httpx
import openai
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

MOST_OPEN = 1000
"""Answers that may still get a thumb; older ones are over when the server's `idle_s` has passed."""
PAGE = """<!doctype html><meta charset="utf-8"><title>Ask</title>
<form id="ask"><input id="question" size="60" required> <button>Ask</button></form><div id="answers"></div>
<script>
const post = (path, body) => fetch(path, {method: "POST", headers: {"content-type": "application/json"},
  body: JSON.stringify(body)}).then(answer => answer.ok ? answer.json() : Promise.reject(answer.status))
document.getElementById("ask").onsubmit = async event => {
  event.preventDefault()
  const row = document.createElement("p"), found = await post("/ask", {question: question.value})
  row.textContent = found.answer + " "
  for (const [sign, up] of [["\\u{1F44D}", true], ["\\u{1F44E}", false]]) {
    const thumb = document.createElement("button")
    thumb.textContent = sign
    thumb.onclick = () => post("/thumb", {id: found.id, up}).then(() => row.append(" thanks"))
    row.append(thumb)
  }
  document.getElementById("answers").prepend(row)
}
</script>"""


class Question(BaseModel):
    """POST /ask."""

    question: str = Field(min_length=1, max_length=2000)


class Thumb(BaseModel):
    """POST /thumb."""

    id: str
    up: bool


def application(server: str, token: str) -> FastAPI:
    """The application. `server`: address of the served run; `token`: opens trajectories there."""
    app = FastAPI(title="ask")
    opened: dict[str, dict[str, Any]] = {}

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE)

    @app.post("/ask")
    async def ask(asked: Question) -> dict[str, str]:
        async with httpx.AsyncClient(base_url=server, headers=_key(token)) as http:
            answer = await http.post("/trajectories")
        if answer.status_code == 429:
            raise HTTPException(503, "too many users are here; come back in a moment.")
        one = answer.raise_for_status().json()
        messages: Any = [{"role": "user", "content": asked.question}]
        async with openai.AsyncOpenAI(base_url=one["base_url"], api_key=one["key"]) as client:
            said = await client.chat.completions.create(model="policy", messages=messages)
        opened[one["id"]] = one
        while len(opened) > MOST_OPEN:
            del opened[next(iter(opened))]
        return {"id": one["id"], "answer": said.choices[0].message.content or ""}

    @app.post("/thumb")
    async def thumb(given: Thumb) -> dict[str, bool]:
        one = opened.pop(given.id, None)
        if one is None:
            raise HTTPException(404, "there is no such answer, or it has its thumb.")
        async with httpx.AsyncClient(base_url=server, headers=_key(one["key"])) as http:
            ended = await http.post(f"/trajectories/{given.id}/end", json={"reward": float(given.up)})
        return {"stored": ended.is_success}

    return app


def _key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def main() -> None:
    """Serve the page on this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="address of the served run")
    parser.add_argument("--port", type=int, default=8080)
    asked = parser.parse_args()
    uvicorn.run(application(asked.server, os.environ["RFT_SERVE_TOKEN"]), port=asked.port)


if __name__ == "__main__":
    main()
