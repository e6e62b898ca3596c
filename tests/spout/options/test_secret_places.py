"""No error about a folder shows what its URI keeps secret, whatever the URI looks like: 200 are drawn."""

from __future__ import annotations

import contextlib
import logging
import re
import traceback
from collections.abc import Iterator
from random import Random
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings, strategies as st

from kinesis_trident.checkpoint.model.layout import Layout
from kinesis_trident.common.folder import Folder
from kinesis_trident.common.redaction import has_credentials, hide_secrets, redact
from kinesis_trident.spout.failed_records.compacting import compact_letters
from kinesis_trident.spout.failed_records.dead_letters import read_dead_letters
from kinesis_trident.spout.failed_records.letter_writer import DeadLetterWriter
from kinesis_trident.spout.failed_records.retry_spool import RetrySpool
from kinesis_trident.spout.options.source import SourceOptions
from kinesis_trident.spout.planner.state import make_rules
from kinesis_trident.tracker.records import Run
from kinesis_trident.trident.stores.files import FileState

PLANTED = "PLANTED"

# A key is base64 or percent-encoded; who pastes it forgets to encode it.
KEYS = st.lists(st.sampled_from(["/", "+", "=", "%2F", ":", "@", "?", "#", "&", "12", "x"]), max_size=4).map(
    lambda between: PLANTED + "".join(f"{one}{PLANTED}" for one in between)
)
PARAMETERS = st.sampled_from(
    ["secret_key", "access_key", "sas_token", "password", "sig", "session_token", "credential", "key"]
)
PLACES = st.sampled_from(["bucket?region=a", "host:9000/x", "bucket/x?region=eu-west-1&scheme=http"])


def _beside(separator: str) -> st.SearchStrategy[str]:
    """Return `user:KEY@`, where the user may look like a port's host."""
    return st.builds(lambda user, key: f"{user}{separator}{key}@", st.sampled_from(["AKID", "me", ""]), KEYS)


URIS = st.one_of(
    # A user and a password, in any scheme, those that nobody knows too.
    st.builds(
        "{}://{}{}".format,
        st.sampled_from(["s3", "s3a", "s3n", "s4", "http", "ftp", "gs", "abfss", "hdfs", "nosuch", "S3"]),
        _beside(":"),
        PLACES,
    ),
    # A key alone, where a user is no name.
    st.builds(
        "{}://{}@{}".format,
        st.sampled_from(["s3", "s3a", "s3n", "s4", "http", "nosuch"]),
        st.sampled_from([PLANTED, f"{PLANTED}+{PLANTED}=", f"{PLANTED}%2F{PLANTED}"]),
        PLACES,
    ),
    # A parameter, and whatever is behind a #.
    st.builds(
        lambda scheme, name, key, rest: f"{scheme}://bucket/x?region=eu-west-1&{name}={key}{rest}",
        st.sampled_from(["s3", "s3a", "s4", "hdfs", "abfss", "gs", "nosuch"]),
        PARAMETERS,
        st.sampled_from([PLANTED, f"{PLANTED}/{PLANTED}+=", f"{PLANTED}%2F{PLANTED}"]),
        st.sampled_from(["", f"#{PLANTED}", f"&other={PLANTED}"]),
    ),
)


@contextlib.contextmanager
def _errors(said: list[str]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        said += [str(error), "".join(traceback.format_exception(error))]


class Reached:
    """The file system of a URI that pyarrow takes, without its server: each call says what it was given."""

    type_name = "s3"

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def __getattr__(self, name: str) -> object:
        def refuse(*_: object, **__: object) -> None:
            msg = f"{name}: no answer from {self._uri}"
            raise OSError(msg)

        return refuse


@settings(max_examples=200, deadline=None)
@given(uri=URIS)
def test_no_error_about_a_place_shows_a_secret(uri: str) -> None:
    class Target:
        dead_letter = uri
        application_name = "app"

    said: list[str] = [redact(uri)]
    records = logging.getLogger("kinesis_trident")
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    records.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        for is_reached in (False, True):
            patch.setattr(
                Folder, "open", lambda folder, reached=is_reached: _open(folder, is_reached=reached)
            )
            with _errors(said):
                list(read_dead_letters(uri))
            with _errors(said):
                writer = DeadLetterWriter(Target(), None)  # type: ignore[arg-type]
                writer.write(stream="s", txid=1, letters={"s0": [(Run("5", "5"), [], True)]}, again=True)
            with _errors(said):
                compact_letters(uri, "app", "s", lambda _: True)
            spool = RetrySpool(uri, Layout("/r", "app", "s", 1))
            with _errors(said):
                spool.get("s0", [Run("5", "5")])
            with _errors(said):
                spool.clean(1, {})
            with _errors(said):
                FileState.opaque(uri, requestRetries=0).store()
    records.removeHandler(handler)
    given_ = {"streamName": "s", "applicationName": "a", "zookeeper.hosts": "h", "startingPosition": "LATEST"}
    for name in ("deadLetter", "retrySpool"):
        with _errors(said):
            SourceOptions.parse(given_ | {"region": "us-east-1", name: uri})
    options = SourceOptions(stream_name="s", dead_letter=uri, retry_spool=uri)
    said += [repr(options), make_rules(options, Random(0)).target]
    assert len(said) > 10
    assert [text for text in said if PLANTED in text] == []


_OPEN = Folder.open


def _open(folder: Folder, *, is_reached: bool) -> tuple[object, str]:
    """Open a folder for what pyarrow says of its URI; a server is not asked."""
    if not is_reached and not _asks_the_network(folder.target):
        _OPEN(folder)
    return Reached(folder.target), "x"


def _asks_the_network(uri: str) -> bool:
    """Return whether pyarrow asks S3 for the region of a bucket as it takes a URI."""
    with contextlib.suppress(ValueError):
        return bool(re.match("s3[an]?:", uri)) and "region=" not in urlsplit(uri).query
    return True


@pytest.mark.parametrize(
    "uri",
    [
        "/local/x@y:1",
        "s3://bucket/a@b",
        "s3a://bucket/x?region=eu-west-1&endpoint_override=host:9000&scheme=http",
        "hdfs://me@one:8020,two:8020/x@y",
        "hdfs://one:8020/x@y",
        "abfss://box@account.dfs.core.windows.net/x",
        "gs://anonymous@bucket/x",
        "file:///x/y@z:1",
    ],
)
def test_a_place_without_secrets_is_shown_as_it_is(uri: str) -> None:
    assert redact(uri) == uri
    assert not has_credentials(uri)
    assert hide_secrets(f"no access to {uri}", uri) == f"no access to {uri}"


def test_an_error_keeps_what_is_no_secret() -> None:
    uri = "s3://AKID:a%2Fkey@bucket/x?secret_key=key&replication=3&region=eu-west-1"
    said = "AKID a/key a%2Fkey: Error 13 in eu-west-1, bucket/x"
    assert hide_secrets(said, uri) == "*** *** ***: Error 13 in eu-west-1, bucket/x"
