#!/usr/bin/env bash
# install.sh cpu|cuda FOLDER: makes FOLDER a virtual environment with this package and the exact versions of
# requirements/lock-cpu.txt or lock-cuda.txt. Run from the root of the source; both Dockerfiles do.
set -euo pipefail
if [ $# -ne 2 ] || [ ! -f "requirements/lock-$1.txt" ]; then
  echo "error: wanted: docker/install.sh cpu|cuda FOLDER, from the root of the source" >&2
  exit 2
fi
lock="requirements/lock-$1.txt" folder="$2"
python3 -m venv "$folder"
install() { "$folder/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps "$@"; }
if ! install -r "$lock"; then
  echo "error: not all of $lock can be had. The CPU build of torch is on an index of its own: name that in" \
    "PIP_EXTRA_INDEX_URL, or a folder with the wheel in PIP_FIND_LINKS" >&2
  exit 3
fi
install --no-build-isolation .
"$folder/bin/rft" --version
