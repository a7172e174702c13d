"""The smallest value of each section that a recipe may lack: what a message tells a person to write."""

from __future__ import annotations

from collections.abc import Mapping

SMALLEST: Mapping[str, str] = {
    "name": "name: first",
    "run_dir": "run_dir: runs/first",
    "buffer": "buffer: {uri: runs/first/buffer}",
    "model": "model: {path: Qwen/Qwen2.5-0.5B-Instruct}",
    "models": "models: [Qwen/Qwen2.5-0.5B-Instruct]",
    "tasks": "tasks: [{name: mine, source: {use: file, path: tasks.jsonl}}]",
    "selector": "selector: {use: random}",
    "explorer": (
        "explorer: {engine: {use: vllm, max_model_len: 1024}, group_size: 8, max_tokens: 512, "
        "reward: [{use: exact_answer}]}"
    ),
    "experience_ops": "experience_ops: [{grpo_advantage_mapper: {}}]",
    "evaluation": "evaluation: {limit: 100}",
    "groups": "groups: 100",
    "explored_by": "explored_by: first",
    "group_size": "group_size: 8",
}
"""Lines by their key."""
_STAGES: Mapping[str, str] = {
    "offline": "stages: [{algorithm: sft, data: {min_reward: 1.0}}]",
    "": "stages: [{algorithm: grpo, steps: 100, groups_per_step: 8, checkpoint_every: 10}]",
}
"""Those of a mode; others have the last."""


def smallest(key: str, mode: str) -> str:
    """The line to write for a key that a recipe of a mode lacks; empty for a key that is never required."""
    return _STAGES.get(mode, _STAGES[""]) if key == "stages" else SMALLEST.get(key, "")
