"""Checks at a start that failed records have places that can be, and cleans them up."""

from __future__ import annotations

import logging
import time

from kinesis_trident.checkpoint.model.layout import escape
from kinesis_trident.common.folder import OUTDATED_SECONDS, Folder, FolderError, NoFolderError
from kinesis_trident.common.stream_names import is_stream_name, stream_of
from kinesis_trident.spout.errors import OptionsError
from kinesis_trident.spout.kinesis import Kinesis, KinesisError, StreamMissingError
from kinesis_trident.spout.options.source import SourceOptions

log = logging.getLogger(__name__)


def check_places(options: SourceOptions, kinesis: Kinesis) -> None:
    """Check the places of `deadLetter` and `retrySpool`, so that a start is refused and not the first failed record.

    Nothing is made or written there. Executors may reach what this process does not: that is a warning.

    Raises:
        OptionsError: a place that cannot be.
    """
    for option, place in (("deadLetter", options.dead_letter), ("retrySpool", options.retry_spool)):
        if place is None:
            continue
        try:
            if (name := stream_of(place)) is not None:
                _check_stream(kinesis, name)
            else:
                Folder(place).check()
        except (NoFolderError, StreamMissingError) as error:
            msg = (
                f"option {option} is {Folder(place).place!r}, where nothing can be written: {error}. Give a folder "
                f"that can be{', or a stream that exists' if option == 'deadLetter' else ''}"
            )
            raise OptionsError(msg) from None
        except (FolderError, KinesisError) as error:
            log.warning("the place of option %s cannot be looked at from here: %s", option, error)


def remove_parts(place: str | None, application: str) -> None:
    """Remove what killed tasks have not ended of an application's dead letters in a folder, once it is a day old."""
    if place is None or stream_of(place) is not None:
        return
    folder = Folder(place)
    try:
        folder.remove_parts(escape(application), deep=True, before=time.time() - OUTDATED_SECONDS)
    except FolderError as error:
        log.warning("cannot clean up the dead letters in %s, trying again tomorrow: %s", folder.place, error)


def _check_stream(kinesis: Kinesis, name: str) -> None:
    if not is_stream_name(name):
        msg = f"{name!r} is no name of a stream"
        raise StreamMissingError(msg)
    kinesis.describe(name)
