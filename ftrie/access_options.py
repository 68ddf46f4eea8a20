"""The flags of every command that calls a server: TLS and token. What they mean is `ftrie.access`."""

from __future__ import annotations

from typing import Annotated

import typer

AddressOption = Annotated[str, typer.Option(metavar="HOST:PORT", help="The server.")]
TlsCaOption = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="FTRIE_TLS_CA",
        metavar="FILE",
        help="Speak TLS; the server must be signed by one of these authorities (PEM), or `system`.",
    ),
]
TlsCertOption = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        envvar="FTRIE_TLS_CERT",
        metavar="FILE",
        help="For mutual TLS: one's own certificate, PEM.",
    ),
]
TlsKeyOption = Annotated[
    str,
    typer.Option("--tls-key", envvar="FTRIE_TLS_KEY", metavar="FILE", help="For mutual TLS: its key, PEM."),
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="FTRIE_TOKEN",
        help="The bearer token; better in FTRIE_TOKEN, since all users of a machine see its command lines.",
    ),
]
