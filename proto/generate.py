"""Makes the Python stubs of every .proto here, in place; with `--check` only compares them with those here.

Run by `make proto` and `make check`. The stubs are committed, so installing ftrie needs no compiler. Only
the same grpcio-tools makes the same stubs, which is why pyproject.toml pins it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
GOOGLES = Path(grpc_tools.__file__).parent / "_proto"
STUBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def generate(into: Path) -> None:
    """Write the stubs of every .proto file below this folder into the same places below `into`."""
    protos = sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.proto"))
    outputs = [f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"--proto_path={HERE}", f"--proto_path={GOOGLES}", *outputs, *protos]) != 0:
        raise SystemExit("proto/generate.py: protoc failed; its message stands above")


def stubs(folder: Path) -> dict[str, bytes]:
    """Path below `folder` → content, of every generated file."""
    found = (path for pattern in STUBS for path in folder.rglob(pattern))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def drifted() -> list[str]:
    """Paths of stubs that are missing, left over, or not what the .proto files say."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted = stubs(Path(folder))
    present = stubs(HERE)
    return sorted(path for path in wanted | present if wanted.get(path) != present.get(path))


def main() -> int:
    """Generate, or with `--check` print what drifted and return 1."""
    parser = argparse.ArgumentParser(description="Generate the Python stubs of proto/.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a stub is out of date")
    if not parser.parse_args().check:
        generate(HERE)
        return 0
    stale = drifted()
    for path in stale:
        print(f"proto/{path} is not what its .proto says: run `make proto`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
