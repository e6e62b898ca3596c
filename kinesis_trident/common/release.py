"""Says which release this is."""

from __future__ import annotations


def installed_version() -> str:
    """Return the version of the installed package.

    Raises:
        AttributeError: it is on the path, but not installed.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kinesis-trident")
    except PackageNotFoundError:
        msg = (
            "module 'kinesis_trident' has no attribute '__version__': kinesis-trident is on the path, but not "
            "installed"
        )
        raise AttributeError(msg) from None
