"""Programs as users have them: each asks the model that it was told of."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

TASK = json.loads(Path(os.environ["RFT_TASK"]).read_text())
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def post(url, body):
    key = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), key)  # noqa: S310
    return json.load(urllib.request.urlopen(request))  # noqa: S310 - the server that it was told of


def ask(messages, route="chat/completions", **more):
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, **more}
    return post(f"{os.environ['OPENAI_BASE_URL']}/{route}", body)["choices"]


def leave(reward):
    Path(os.environ["RFT_REWARD"]).write_text(json.dumps(reward))


def asks():
    ask(TASK["messages"])


def two_turns():
    messages = list(TASK["messages"])
    messages += [ask(messages)[0]["message"], {"role": "user", "content": "Sure?"}]
    again = ask(messages)[0]["message"]["content"]
    sys.stdout.write(f"the model says {again}\n")
    leave(1.0 if again == TASK["answer"] else 0.0)


def tells_its_key():
    """As programs do that print their settings."""
    ask(TASK["messages"])
    sys.stdout.write(f"{dict(os.environ)}\n")
    sys.exit(int(os.environ["STATUS"]))


def posted():
    ask(TASK["messages"])
    assert post(os.environ["RFT_REWARD_URL"], {"reward": 0.5, "parts": {"form": 1}}) == {"reward": 0.5}


def tree():
    """A branch, two at once, a sub-agent and a compaction."""
    first = ask(TASK["messages"], n=2)
    for one in first:
        more = [*TASK["messages"], one["message"], {"role": "user", "content": "And?"}]
        ask(more)
    ask([{"role": "user", "content": "a sub task"}])
    ask([{"role": "user", "content": "summary of what was said"}])


def tools():
    """With the real client."""
    import openai

    client, messages = openai.OpenAI(max_retries=0), list(TASK["messages"])
    whole = client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
    said, first = whole.choices[0], whole.usage
    assert said.finish_reason == "tool_calls", said
    call = said.message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"a": 2}
    result = {"role": "tool", "tool_call_id": call.id, "content": "5"}
    messages += [said.message.model_dump(exclude_none=True), result]
    asked = {"messages": messages, "tools": [ADD], "stream_options": {"include_usage": True}}
    *chunks, last = client.chat.completions.create(model="policy", **asked, stream=True)
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    plain = client.completions.create(model="policy", prompt="2+2=")
    assert plain.choices[0].text == "4"
    used = [[one.prompt_tokens, one.completion_tokens] for one in (first, last.usage, plain.usage)]
    sys.stdout.write(json.dumps(used))
    assert client.models.list().data[0].id == os.environ["OPENAI_MODEL"]
    leave({"reward": float(said == TASK["answer"]), "parts": {"streamed": 1.0}})


def streams():
    """Two choices at once, with tools, as the real client reads them."""
    import openai

    said, finished = {}, {}
    asked = {"messages": TASK["messages"], "tools": [ADD], "n": 2, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    for chunk in openai.OpenAI(max_retries=0).chat.completions.create(model="policy", **asked):
        if chunk.usage:
            sys.stdout.write(json.dumps([chunk.usage.prompt_tokens, chunk.usage.completion_tokens]))
        for choice in chunk.choices:
            said.setdefault(choice.index, []).append(choice.delta)
            finished[choice.index] = choice.finish_reason or finished.get(choice.index)
    called = [call for delta in said[0] for call in delta.tool_calls or ()]
    assert [call.index for call in called] == [0]
    assert json.loads(called[0].function.arguments) == {"a": 2}
    assert "".join(delta.content or "" for delta in said[1]) == "4"
    assert finished == {0: "tool_calls", 1: "stop"}, finished
    leave(1)


def other_route():
    ask(TASK["messages"])
    post(f"{os.environ['OPENAI_BASE_URL']}/{os.environ['ROUTE']}", {"input": "2", "messages": []})


def crash():
    ask(TASK["messages"])
    sys.stdout.write("about to fall\x1b[31m\n")
    sys.exit(3)


def refused():
    ask(TASK["messages"], temperature=0.123)


def endless():
    messages = list(TASK["messages"])
    while True:
        messages += [ask(messages)[0]["message"], {"role": "user", "content": "Go on."}]


def hangs():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}")
    ask(TASK["messages"])
    time.sleep(600)


def looks_around():
    ask(TASK["messages"])
    here = {"here": os.getcwd(), "variables": sorted(os.environ), "mine": os.environ["MINE"]}
    sys.stdout.write(json.dumps(here))
    leave(1)


globals()[sys.argv[1]]()
