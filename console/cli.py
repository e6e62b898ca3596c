"""`kinesis-trident`: shows and steers applications in ZooKeeper, looks into streams, runs local servers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kinesis_trident.checkpoint.zookeeper.client import Sasl
from kinesis_trident.checkpoint.zookeeper.tls import Tls
from kinesis_trident.common.errors import KinesisTridentError
from kinesis_trident.common.visible_text import make_visible
from kinesis_trident.console.commands import (
    checkpoints,
    dead_letters,
    doctor,
    forget,
    moving,
    pauses,
    records,
    rename,
    servers,
    status,
    streams,
    ui,
)
from kinesis_trident.console.commands.servers import serve
from kinesis_trident.console.commands.words import Words
from kinesis_trident.console.target import ConsoleError, Login

__all__ = ["app", "main", "serve"]

app = typer.Typer(
    help=__doc__.replace("`", "")
    + "\n\nBegin with apps, then status APP, which says what is wrong and what to do.",
    cls=Words,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _part in (
    status,
    ui,
    checkpoints,
    moving,
    records,
    dead_letters,
    pauses,
    rename,
    forget,
    streams,
    doctor,
    servers,
):
    app.add_typer(_part.commands)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; an error is printed as one message, with exit code 1."""
    try:
        app(arguments)
    except KinesisTridentError as error:
        text = "\n".join(make_visible(line) for line in str(error).splitlines())
        print(f"kinesis-trident: {text}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain once more when it flushes.
        sys.stderr.close()
        sys.exit(1)


def _say_version(wanted: bool) -> None:
    if wanted:
        from kinesis_trident.common.release import installed_version

        print(f"kinesis-trident {installed_version()}")
        raise typer.Exit


@app.callback()
def login(
    *,
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for ZooKeeper.")] = 10.0,
    digest: Annotated[
        str | None,
        typer.Option(
            envvar="KINESIS_TRIDENT_ZOOKEEPER_DIGEST", metavar="USER:PASSWORD", help="Log in with a digest."
        ),
    ] = None,
    sasl: Annotated[
        str | None,
        typer.Option(
            envvar="KINESIS_TRIDENT_ZOOKEEPER_SASL",
            metavar="USER:PASSWORD",
            help="Log in with SASL.",
        ),
    ] = None,
    sasl_mechanism: Annotated[str, typer.Option(help="The mechanism of the SASL login.")] = "DIGEST-MD5",
    tls_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the only authorities to trust; switches TLS on.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM file of the client's certificate.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file of its key.")] = None,
    tls_verify: Annotated[
        bool, typer.Option("--tls-verify/--no-tls-verify", help="Verify the server's certificate.")
    ] = True,
    tls_check_hostname: Annotated[
        bool,
        typer.Option(
            "--tls-check-hostname/--no-tls-check-hostname",
            help="The certificate must name the host in HOSTS.",
        ),
    ] = True,
) -> None:
    """Shows and steers applications in ZooKeeper, looks into streams, runs local servers."""
    ca, cert, key = (str(path) if path else None for path in (tls_ca, tls_cert, tls_key))
    with_tls = bool(ca or cert or key) or not (tls_verify and tls_check_hostname)
    user, colon, password = (sasl or "").partition(":")
    if sasl and not (user and colon and password):
        msg = "--sasl is not of the form USER:PASSWORD"
        raise ConsoleError(msg)
    context.obj = Login(
        timeout,
        Tls(ca, cert, key, tls_verify, tls_check_hostname) if with_tls else None,
        Sasl(user, password, sasl_mechanism) if sasl else None,
        digest,
    )
