"""Whole files as objects below one URL, through Lance's client, which buffers use too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

from rft_data.core.errors import DiskFullError, RftError, StalledError

PATIENT: Mapping[str, str] = {"client_max_retries": "100", "client_retry_timeout": "300"}
"""Options of a client that goes on asking for 5 minutes while the store does not answer; without them it
asks 4 times, within a second if connections are refused."""
_REFUSED = re.compile(
    r"\b40[13] (?:Forbidden|Unauthorized)|\bstatus: 40[13]\b|lacked the necessary privileges"
)
"""Three messages of Lance's client about credentials that the store does not take."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_CAUSES = (_CODE, re.compile(r'\b(?:message|error): "([^"]+)"'), re.compile(r"HTTP error: ([^,]+),"))
"""The cause in a message of Lance's client: the store's, the operating system's, or its own words."""
_ASKED = re.compile(r"(?:Some\(|performing [A-Z]+ )https?://(?:[^@/\s]*@)?([^/\s?)]+)")
"""The machine that it asked."""
_LONGEST = 200


class Objects:
    """The objects below a URL. Safe to use from many threads."""

    def __init__(self, url: str, options: Mapping[str, str] | None = None) -> None:
        """Nothing is asked of the store yet. Args: options: for Lance's client, such as `PATIENT`."""
        from lance.file import LanceFileSession  # 0.4 s

        self._url = url
        self.options = dict(options or {})
        with reached(url):
            self._session = LanceFileSession(url, storage_options=self.options)

    def put(self, file: Path, key: str) -> None:
        """Store a file; the object is whole or absent. Raises: StalledError; FileNotFoundError."""
        file.stat()
        with reached(f"{self._url}/{key}"):
            self._session.upload_file(str(file), key)

    def fetch(self, key: str, file: Path) -> None:
        """Write an object to a file. Raises: StalledError; DiskFullError."""
        with reached(f"{self._url}/{key}"):
            self._session.download_file(key, str(file))

    def has(self, key: str) -> bool:
        """Whether there is such an object. Raises: StalledError."""
        with reached(f"{self._url}/{key}"):
            return bool(self._session.contains(key))

    def remove(self, key: str) -> None:
        """Delete an object. Raises: StalledError."""
        with reached(f"{self._url}/{key}"):
            self._session.delete_file(key)

    def keys_below(self, below: str = "") -> list[str]:
        """The keys in the folder `below`, and in folders of it. Raises: StalledError."""
        with reached(f"{self._url}/{below}"):
            return sorted(self._session.list(below or None))

    def text(self, key: str) -> str | None:
        """The content of a small object; None if there is none. Raises: StalledError."""
        if not self.has(key):
            return None
        with TemporaryDirectory() as folder:
            file = Path(folder) / "object"
            self.fetch(key, file)
            return file.read_text()


@contextmanager
def reached(url: str) -> Iterator[None]:
    """Turn what Lance says of a store in a `with` block into one error that names the object.

    Raises: StalledError, for the network, the bucket and the credentials may be mended, and the run resumed;
        DiskFullError if it is this machine's disk that has no room.
    """
    try:
        yield
    except RftError:
        raise
    except (OSError, RuntimeError, ValueError) as err:
        check_credentials(url, err)
        if "No space left" in str(err):
            raise DiskFullError(
                f"the disk of this machine has no room for object {url}; free some space and go on: nothing "
                "that was stored is lost."
            ) from err
        raise StalledError(
            f"object {url} cannot be reached: {_cause(str(err))}. See that the store runs at AWS_ENDPOINT "
            "(without it: Amazon's), that the bucket is there, and AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
            "and AWS_REGION are right; nothing that was stored is lost."
        ) from err


def _cause(said: str) -> str:
    """The failure in a few words: Lance's client writes its whole state into an error."""
    found = next((match[1] for one in _CAUSES if (match := one.search(said))), None)
    words = found or shorten(said.partition("\n")[0], _LONGEST, placeholder=" ...")
    asked = _ASKED.search(said)
    return f"{words} ({asked[1]})" if asked else words


def check_credentials(url: str, err: Exception) -> None:
    """Name the cause of an error of Lance, if the store refused the credentials. Such a call is not repeated.

    Raises: StalledError.
    """
    said = str(err)
    if not _REFUSED.search(said):
        return
    code = _CODE.search(said)
    raise StalledError(
        f"the store refuses {url}{f' ({code[1]})' if code else ''}: the credentials in AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN are wrong, have expired, or may not do this. Give "
        "others and go on; nothing that was stored is lost."
    ) from err
