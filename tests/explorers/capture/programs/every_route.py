"""A program with the real client, and what else an unchanged program speaks."""

import json
import os
import sys
import urllib.request
from pathlib import Path

import openai

ASK = json.loads(Path(os.environ["RFT_TASK"]).read_text())["messages"]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
MODEL = os.environ["OPENAI_MODEL"]
client = openai.OpenAI(max_retries=0)


def streamed():
    """The texts of two choices, and how many pieces they came in."""
    texts, chunks = {}, 0
    for chunk in client.chat.completions.create(model=MODEL, messages=ASK, tools=[ADD], n=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            chunks += 1
    return {"streamed": sorted(texts), "texts": [texts[n] for n in sorted(texts)], "chunks": chunks}


def messages():
    """As Anthropic's client asks."""
    url = f"{os.environ['ANTHROPIC_BASE_URL']}/v1/messages"
    body = {"model": os.environ["ANTHROPIC_MODEL"], "messages": ASK, "max_tokens": 5, "stream": True}
    headers = {"x-api-key": os.environ["ANTHROPIC_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - the server that it was told of
        events = answer.read().decode()
    assert "event: message_stop" in events, events


if sys.argv[1:] == ["wrong"]:
    client.chat.completions.create(model=MODEL, messages=ASK, top_p=0.5)
found = streamed()
with client.responses.stream(model=MODEL, input="1 + 1 =", max_output_tokens=5) as stream:
    assert any(event.type == "response.completed" for event in stream)
messages()
assert client.completions.create(model=MODEL, prompt="1 + 1 =", max_tokens=5).choices
sys.stdout.write(json.dumps(found))
Path(os.environ["RFT_REWARD"]).write_text("0.25")
