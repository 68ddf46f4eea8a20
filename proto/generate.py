"""Generates the Python stubs and docs/protocol.md from the .proto files; with `--check` only compares them.

`make proto` and `make check` run it. The stubs are committed, so that installing ftrie needs no compiler;
pyproject.toml pins grpcio-tools, since another version generates other stubs. `--release` renews released.binpb, the
wire as last released, which `buf breaking` compares with.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
# The .proto files of google.protobuf, which grpc_tools brings.
GOOGLES = Path(grpc_tools.__file__).parent / "_proto"
STUBS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")
PAGE = HERE.parent / "docs/protocol.md"
RELEASED = HERE / "released.binpb"
FILES = ("ranking", "feedback", "admin")  # in the page's order
MESSAGES, ENUMS, SERVICES, FILE = 4, 5, 6, 12  # of FileDescriptorProto; 12 is its `syntax`
MEMBERS = 2  # of a message, an enum and a service
ONEOFS = 8  # of a message
TOP = """# The wire: `ctr.v1`

<!-- Generated from the comments in proto/ctr/v1/*.proto by `make proto`. Edit those. -->
"""


def main() -> int:
    """Generate, or with `--check` print what is out of date and return 1."""
    parser = argparse.ArgumentParser(description="Generate the stubs and the page of proto/.")
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a file is out of date")
    parser.add_argument(
        "--release", action="store_true", help="renew released.binpb; only when a release is made"
    )
    flags = parser.parse_args()
    if flags.release:
        command = [
            str(Path(sys.executable).with_name("buf")),
            "build",
            # Without comments, which may change while the wire stays.
            "--exclude-source-info",
            "-o",
            str(RELEASED),
        ]
        return subprocess.run(command, cwd=HERE).returncode
    if not flags.check:
        generate(HERE)
        PAGE.write_text(page(), "utf-8")
        return 0
    stale = drifted()
    for path in stale:
        print(f"{path} is out of date: run `make proto`", file=sys.stderr)
    return 1 if stale else 0


def generate(into: Path) -> None:
    """Write the stubs of every .proto file below this folder into the same places below `into`."""
    _run_protoc(*(f"--{kind}_out={into}" for kind in ("python", "pyi", "grpc_python")))


def drifted() -> list[str]:
    """Paths of generated files that are missing, left over, or out of date."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        wanted = stubs(Path(folder))
    present = stubs(HERE)
    stale = sorted(f"proto/{path}" for path in wanted | present if wanted.get(path) != present.get(path))
    return stale if PAGE.exists() and PAGE.read_text("utf-8") == page() else [*stale, "docs/protocol.md"]


def stubs(folder: Path) -> dict[str, bytes]:
    """Path below `folder` → content, of every generated stub."""
    found = (path for pattern in STUBS for path in folder.rglob(pattern))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def page() -> str:
    """docs/protocol.md: a section per .proto file, then the sections that file comments begin with `# `."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder, "image")
        _run_protoc(f"--descriptor_set_out={image}", "--include_source_info")
        files = {Path(file.name).stem: file for file in FileDescriptorSet.FromString(image.read_bytes()).file}
    sections, last = [TOP], list[str]()
    for name in FILES:
        document = _Document(files[name])
        intro, *more = re.split(r"^# ", document.comment(FILE), flags=re.MULTILINE)
        heading, _, text = intro.partition(":")
        sections.append(f"## {heading}\n\n{_prose(text.strip()[:1].upper() + text.strip()[1:])}")
        sections += document.sections()
        last += [
            f"## {title}\n\n{_prose(body)}" for title, _, body in (each.partition("\n") for each in more)
        ]
    return "\n".join(each.rstrip() + "\n" for each in [*sections, *last])


class _Document:
    """One .proto file as Markdown."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {tuple(at.path): at.leading_comments for at in file.source_code_info.location}

    def comment(self, *path: int) -> str:
        """The comment above what is at this path, without the space that each line begins with."""
        return re.sub(r"^ ", "", self._comments.get(path, ""), flags=re.MULTILINE).strip()

    def sections(self) -> Iterator[str]:
        """Services with their calls, then messages, then enums."""
        for at, service in enumerate(self._file.service):
            yield f"### {service.name}\n\n{_prose(self.comment(SERVICES, at))}"
            for number, call in enumerate(service.method):
                types = f"`{_short(call.input_type)}` → `{_short(call.output_type)}`"
                text = _prose(self.comment(SERVICES, at, MEMBERS, number))
                yield f"#### {call.name}\n\n{types}\n\n{text}"
        for at, message in enumerate(self._file.message_type):
            text = f"### {message.name}\n\n{_prose(self.comment(MESSAGES, at))}"
            rows = [self._field(message, at, number) for number in range(len(message.field))]
            yield text + (_table("field", "type", rows) if rows else "")
        for at, enum in enumerate(self._file.enum_type):
            rows = [
                (value.name, str(value.number), self.comment(ENUMS, at, MEMBERS, number))
                for number, value in enumerate(enum.value)
            ]
            yield f"### {enum.name}\n\n{_prose(self.comment(ENUMS, at))}{_table('value', 'number', rows)}"

    def _field(self, message: Any, at: int, number: int) -> tuple[str, str, str]:
        field = message.field[number]
        text = self.comment(MESSAGES, at, MEMBERS, number)
        # In a descriptor an `optional` field is a oneof of its own.
        if field.HasField("oneof_index") and not field.proto3_optional:
            text = f"(`{message.oneof_decl[field.oneof_index].name}`) {text}"
        # In a descriptor a map is a repeated message of entries.
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        return field.name, _type(field, entries), text


def _type(field: FieldDescriptorProto, entries: dict[str, Any]) -> str:
    entry = entries.get(_short(field.type_name))
    if entry is not None:
        return f"map<{', '.join(_type(each, {}) for each in entry.field)}>"
    name = _short(field.type_name) or FieldDescriptorProto.Type.Name(field.type)[len("TYPE_") :].lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {name}"
    return f"optional {name}" if field.proto3_optional else name


def _short(name: str) -> str:
    """`.ctr.v1.Item` → `Item`."""
    return name.rpartition(".")[2]


def _prose(text: str) -> str:
    """A comment as Markdown: mentions of documents become links."""
    linked = re.sub(r"docs/(\w+)\.md(#[\w-]+)?", r"[\1](\1.md\2)", text.strip())
    return f"{linked}\n"


def _table(first: str, second: str, rows: list[tuple[str, str, str]]) -> str:
    lines = [f"\n| {first} | {second} | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | `{kind}` | {_cell(text)} |" for name, kind, text in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(_prose(text).split()).replace("|", "\\|")


def _run_protoc(*outputs: str) -> None:
    protos = sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.proto"))
    arguments = ["protoc", f"--proto_path={HERE}", f"--proto_path={GOOGLES}", *outputs, *protos]
    if protoc.main(arguments) != 0:
        raise SystemExit("proto/generate.py: protoc failed; its message is above")


if __name__ == "__main__":
    sys.exit(main())
