"""A program that does sums with a model: what `recipes/program_cpu.yaml` trains, as it is.

It knows nothing of training: the OpenAI client finds the model in OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import openai


def main() -> None:
    """Ask for the sum, and say how good the answer is."""
    task = json.loads(Path(os.environ["RFT_TASK"]).read_text())
    model = os.environ["OPENAI_MODEL"]
    said = openai.OpenAI().chat.completions.create(model=model, messages=task["messages"])
    text = said.choices[0].message.content or ""
    found = re.search(r"####\s*(-?\d+)", text)
    right = found is not None and found[1] == task["answer"]
    Path(os.environ["RFT_REWARD"]).write_text(
        json.dumps({"reward": float(right), "parts": {"form": float(found is not None)}})
    )


if __name__ == "__main__":
    main()
