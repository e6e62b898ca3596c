"""The files that a process may have open at once."""

from __future__ import annotations


def share_of_files(part: int, most: int) -> int:
    """Return one `part`-th of the files that this process may have open, at most so many and at least one.

    A process needs files for other things too.
    """
    try:
        import resource
    except ImportError:
        return most
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    # It may have no limit.
    return most if files == resource.RLIM_INFINITY else max(1, min(most, files // part))
