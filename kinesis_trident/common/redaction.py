"""Removes credentials from URIs before they are shown, and detects them. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote

_SECRET = re.compile(r"secret|password|token|key|sig|credential", re.IGNORECASE)
"""Words in the name of a secret query parameter; more than Spark's own redaction looks for."""

_PLAIN = ("region", "scheme", "endpoint_override")
"""The parameters that are shown: they say where a place is."""

_USERS_ARE_NAMES = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "viewfs", "wasb", "wasbs")
"""Schemes whose part before the @ is the name of a user, a container or an account; elsewhere it is a credential."""


_SEPARATORS = re.compile("[/?#&@:=]")

_PORTS_ARE_USUAL = ("file", "hdfs", "viewfs")
"""Schemes in which a host with a port, and then a path with an @, is no key that was not escaped."""


def redact(text: str) -> str:
    """Return the text; of a URI, only what is not secret: no passwords or keys, and only parameters that are known."""
    if "://" not in text:
        return text
    scheme, user, host, path, parameters = _parts(text)
    if _is_cut_wrongly(text):
        return f"{scheme}://***"
    user = "" if _is_credential(scheme, user) or not user else f"{user}@"
    kept = "&".join(one for one in parameters if _is_plain(one))
    return f"{scheme}://{user}{host}{path}{f'?{kept}' if kept else ''}"


def has_credentials(text: str) -> bool:
    """Return whether a URI contains a password or a key."""
    if "://" not in text:
        return False
    scheme, user, _, _, parameters = _parts(text)
    return _is_credential(scheme, user) or _is_cut_wrongly(text) or any(map(_is_secret, parameters))


def hide_secrets(said: str, uri: str) -> str:
    """Return what an error says of a URI, without what `redact` leaves out of it."""
    pieces = set(_SEPARATORS.split(uri)) - set(_SEPARATORS.split(redact(uri)))
    for piece in sorted({*pieces, *map(unquote, pieces)}, key=len, reverse=True):
        # A piece of one or two characters is no secret, and stands in many words.
        said = said.replace(piece, "***") if len(piece) > 2 else said
    return said


def _parts(text: str) -> tuple[str, str, str, str, list[str]]:
    """Split into scheme, user, host, path and parameters; the part after a # is left out."""
    scheme, _, rest = text.partition("://")
    plain, _, query = rest.partition("#")[0].partition("?")
    authority, slash, path = plain.partition("/")
    user, _, host = authority.rpartition("@")
    return scheme.lower(), user, host, slash + path, [one for one in query.split("&") if one]


def _is_credential(scheme: str, user: str) -> bool:
    return bool(user) and (":" in user or scheme not in _USERS_ARE_NAMES)


def _is_cut_wrongly(text: str) -> bool:
    """Return whether a key that was not escaped may continue in what looks like the host, the path or a parameter."""
    scheme, user, host, _, _ = _parts(text)
    if not all(re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:\d*)?", one) for one in host.split(",")):
        return True
    may_continue = _is_credential(scheme, user) or (":" in host and scheme not in _PORTS_ARE_USUAL)
    return may_continue and "@" in "".join(re.split("[/?#]", text.partition("://")[2], maxsplit=1)[1:])


def _is_plain(parameter: str) -> bool:
    return parameter.partition("=")[0] in _PLAIN and "@" not in parameter


def _is_secret(parameter: str) -> bool:
    return _SECRET.search(parameter.partition("=")[0]) is not None
