"""Removes credentials from URIs in options before they are shown, and detects them. Pure."""

from __future__ import annotations

import re

_SECRET = re.compile(r"secret|password|token|key|sig|credential", re.IGNORECASE)
"""Words in the name of a secret query parameter; more than Spark's own redaction looks for."""

_USERS_ARE_KEYS = ("s3", "http", "https")
"""Schemes whose part before the @ is a credential; elsewhere it may be a container or an account name."""


def redact(text: str) -> str:
    """Return the text; of a URI, only what is not secret: no passwords, keys or parameters named like them."""
    if "://" not in text:
        return text
    scheme, user, host, rest, parameters = _parts(text)
    kept = "&".join(one for one in parameters if not _is_secret(one))
    user = "" if _is_credential(scheme, user) or not user else f"{user}@"
    # A key that was not escaped continues after a slash, and looks like a host with a port.
    if not _is_host(host):
        host, rest = "***", ""
    return f"{scheme}://{user}{host}{rest}{f'?{kept}' if kept else ''}"


def has_credentials(text: str) -> bool:
    """Return whether a URI contains a password or a key."""
    if "://" not in text:
        return False
    scheme, user, host, _, parameters = _parts(text)
    return _is_credential(scheme, user) or not _is_host(host) or any(map(_is_secret, parameters))


def _parts(text: str) -> tuple[str, str, str, str, list[str]]:
    """Split into scheme, user, host, path and parameters; the part after a # is left out."""
    scheme, _, rest = text.partition("://")
    plain, _, query = rest.partition("#")[0].partition("?")
    authority, slash, path = plain.partition("/")
    user, _, host = authority.rpartition("@")
    return scheme.lower(), user, host, slash + path, [one for one in query.split("&") if one]


def _is_credential(scheme: str, user: str) -> bool:
    return bool(user) and (":" in user or scheme in _USERS_ARE_KEYS)


def _is_host(host: str) -> bool:
    return all(re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", one) for one in host.split(","))


def _is_secret(parameter: str) -> bool:
    return _SECRET.search(parameter.partition("=")[0]) is not None
