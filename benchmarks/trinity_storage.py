"""Runs under Trinity-RFT's own environment: writes and reads 1,024-token experiences through its SQL storage.

Prints one JSON object of rows per second. Knows nothing of this package.
"""

import asyncio
import json
import sys
import tempfile
import time

import torch
from trinity.buffer.storage.sql import SQLExperienceStorage
from trinity.common.config import StorageConfig
from trinity.common.experience import EID, Experience

TOKENS, PROMPT = 1000, 200


def experience(number: int) -> Experience:
    """One rollout as Trinity's explorers make it."""
    answered = TOKENS - PROMPT
    return Experience(
        eid=EID(batch=number // 64, task=number // 8, run=number % 8),
        tokens=torch.randint(0, 150_000, (TOKENS,), dtype=torch.int32),
        prompt_length=PROMPT,
        logprobs=torch.randn(answered),
        advantages=torch.randn(answered),
        returns=torch.randn(answered),
        reward=float(number % 2),
        info={"model_version": 1, "use_count": 0},
        response_text="word " * 700,
    )


async def storage(folder: str, batch: int) -> SQLExperienceStorage:
    """A fresh SQLite file."""
    made = SQLExperienceStorage(
        StorageConfig(
            name="exp",
            storage_type="sql",
            path=f"sqlite:///{folder}/exp-{batch}.db",
            schema_type="experience",
            batch_size=batch,
            max_read_timeout=3,
            wrap_in_ray=False,
        )
    )
    await made.prepare()
    return made


async def main(rows: int) -> None:
    """Write with 8 and 64 rows a call, read with 512."""
    experiences = [experience(n) for n in range(rows)]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for batch in (8, 64, 512):
            made = await storage(folder, batch)
            start = time.perf_counter()
            for first in range(0, rows, batch):
                await made.write(experiences[first : first + batch])
            found[f"write_{batch}"] = rows / (time.perf_counter() - start)
        start = time.perf_counter()
        for _ in range(rows // 512):
            await made.read(512)
        found["read_512"] = rows / (time.perf_counter() - start)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
