"""What only some stores need: their packages, and addresses that can hold passwords."""

from __future__ import annotations

import importlib.util
from urllib.parse import urlsplit

from trident.errors import MissingExtraError

__all__ = ["require", "without_secrets"]


def require(package: str, extra: str) -> None:
    """Check that a package is installed.

    Raises:
        MissingExtraError: it is not; the message names the extra of kinesis-trident that brings it.
    """
    if importlib.util.find_spec(package) is None:
        msg = f"this state needs the package {package}: pip install 'kinesis-trident[{extra}]', on the executors too"
        raise MissingExtraError(msg)


def without_secrets(url: str) -> str:
    """A URL for messages: without user, password, query and fragment."""
    if "://" not in url:
        return url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the store's URL, which cannot be read"
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
