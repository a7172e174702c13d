"""The pictures of docs/page.md, of a run of yours: `python -m docs.pages.screenshots runs/sums-grpo`.

It opens the page over the run in the Chromium of the system and writes docs/pictures/*.png: 1200 px wide, few
colours, at most 60 kB each.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parents[1] / "pictures"
WIDTH, HEIGHT = 1200, 750
MOST_BYTES = 60_000
_COLOURS = (64, 32, 16)


def views(page: Page, run: str) -> Mapping[str, str]:
    """Name of each picture to the address it shows: the last trained step leads to a group and a row."""
    page.goto(f"{run}/metric?name=trainer/reward")
    step = page.locator("svg a").last.get_attribute("href") or ""
    page.goto(page.url.partition("/s/")[0] + step)
    row = page.locator("tbody td:first-child a").first.get_attribute("href") or ""
    group = page.locator("tbody a[href*='/groups/']").first.get_attribute("href") or ""
    home = run.partition("/s/")[0]
    return {
        "run": run,
        "flow": f"{run}/flow",
        "experiences": f"{run}/experiences",
        "group": home + group,
        "row": home + row,
    }


def small(png: bytes) -> bytes:
    """The same picture in as many colours as fit into 60 kB. Raises: ValueError when none do."""
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in _COLOURS:
        out = io.BytesIO()
        picture.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() <= MOST_BYTES:
            return out.getvalue()
    raise ValueError(f"a picture takes {out.tell()} bytes in {colours} colours; {MOST_BYTES} are allowed.")


def take(run: Path) -> None:
    """Write every picture."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError("no Chromium; apt-get install chromium")
    command = [sys.executable, "-m", "rft_data.cli.app", "view", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603
        try:
            link = server.stdout.readline().strip() if server.stdout is not None else ""
            with sync_playwright() as playwright:
                page = playwright.chromium.launch(executable_path=chromium).new_page(
                    viewport={"width": WIDTH, "height": HEIGHT}
                )
                page.goto(link)
                name = page.locator("tbody a").first.get_attribute("href")
                for title, address in views(page, re.sub(r"/\?.*", "", link) + str(name)).items():
                    page.goto(address)
                    (FOLDER / f"{title}.png").write_bytes(small(page.screenshot()))
        finally:
            server.terminate()


def main() -> None:
    """Write the pictures of the run that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    FOLDER.mkdir(exist_ok=True)
    take(parser.parse_args().run)


if __name__ == "__main__":
    main()
