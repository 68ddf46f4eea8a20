"""Authorities and certificates for tests, made on the spot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pem:
    """Files of one identity: the authority that signed it, its chain, its key."""

    ca: str
    cert: str
    key: str


def identity(folder: Path, name: str, authority: trustme.CA | None = None) -> Pem:
    """Write an identity that `authority` (or a new one) signed, good for this machine's names."""
    signer = authority or trustme.CA()
    folder.mkdir(parents=True, exist_ok=True)
    issued = signer.issue_cert("localhost", "127.0.0.1")
    pem = Pem(*(str(folder / f"{name}.{kind}.pem") for kind in ("ca", "cert", "key")))
    signer.cert_pem.write_to_path(pem.ca)
    Path(pem.cert).write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(pem.key)
    Path(pem.key).chmod(0o600)
    return pem
