"""`ftrie checkpoint`: lists and verifies the checkpoints in a folder, also while a run is using it. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ftrie.command import command
from ftrie.terminal import JsonOption, print_json, print_table
from model_store.flags import Argument

if TYPE_CHECKING:
    from trainer.checkpoint import Description


@command("Learn", 7, "Example: ftrie checkpoint state")
def checkpoint(
    folder: Annotated[Path, Argument("The folder given to --checkpoint.", "DIR", file="reads")],
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a run, newest first, with the position in its logs; every byte is verified."""
    from model_store.errors import CheckpointError
    from trainer.checkpoint.folder import checkpoints_in

    answers = [_answer(path) for path in checkpoints_in(folder) if path.exists()]  # a run may delete old ones
    if not answers:
        raise CheckpointError(
            f"{folder} holds no checkpoint; expected files such as 000000000012345.checkpoint"
        )
    if as_json:
        print_json(answers)
    else:
        _show(answers)
    if all(answer["damaged"] for answer in answers):
        raise CheckpointError(f"every checkpoint in {folder} is damaged; start again with another folder")


def _answer(path: Path) -> dict[str, Any]:
    from trainer.checkpoint.description import description_from_json
    from trainer.checkpoint.file import Damaged, read

    answer: dict[str, Any] = {"file": path.name}
    try:
        written, arrays = read(path)
    except Damaged as error:
        return answer | {"damaged": str(error)}
    answer["bytes"] = path.stat().st_size
    if "distributed" in written:
        return answer | {"damaged": None, **_distributed(written, path)}
    description = description_from_json(written, str(path))
    sizes = {name: array.nbytes for name, array in arrays.items()}
    return answer | {"damaged": None, **_described(description), "arrays": sizes}


def _described(description: Description) -> dict[str, Any]:
    from model_store.spec.spec import spec_from_json

    return {
        "model": spec_from_json(description.spec).model.name,
        "rows": description.rows,
        "keys": description.keys,
        "rejected": sum(description.reject_counts.values()),
        "seconds": round(description.seconds, 3),
        "created": description.created,
        "ftrie": description.ftrie,
        "read": [
            {
                "file": each.path,
                "line": each.position.line,
                "offset": each.position.offset,
                "finished": each.disk_bytes is not None,
            }
            for each in description.read
        ],
        "stream": _stream(description.stream) if description.stream is not None else None,
    }


def _distributed(written: dict[str, Any], path: Path) -> dict[str, Any]:
    """Of a distributed run: how far it is. The checkpoint has no position in the log, which is read again."""
    from model_store.spec.spec import spec_from_json
    from trainer.distributed.checkpoint import state_from_json

    state = state_from_json(written, path)
    last = state.problems[-1].iterations[-1]
    return {
        "model": spec_from_json(state.spec).model.name,
        "problem": state.problems[-1].name,
        "iteration": last.number,
        "objective": last.objective,
        "workers": state.settings.workers,
        "method": state.settings.method,
        "seconds": round(state.seconds, 3),
        "created": state.created,
        "ftrie": state.ftrie,
    }


def _stream(stream: dict[str, Any]) -> dict[str, Any]:
    """The part of a trainer's checkpoint that a run lacks: positions in its sources, and counts of events."""
    return {name: stream.get(name) for name in ("sources", "places", "counts", "join")}


def _show(answers: list[dict[str, Any]]) -> None:
    columns: tuple[str, ...] = ("file", "model", "rows", "keys", "rejected", "created", "bytes")
    distributed = any("iteration" in answer for answer in answers)
    if distributed:
        columns = ("file", "model", "problem", "iteration", "objective", "workers", "created", "bytes")
    print_table(
        [*columns, "verified"],
        [[*(answer.get(name) for name in columns), answer["damaged"] or "yes"] for answer in answers],
    )
    sound = next((answer for answer in answers if not answer["damaged"] and not distributed), None)
    if sound is not None and sound["stream"] is not None:
        print()
        counts = {**sound["stream"]["counts"], **sound["stream"]["join"]}
        print_table(["counted", "so far"], [[name, count] for name, count in counts.items()])
    elif sound is not None:
        print()
        print_table(
            ["read", "up to line", "finished"],
            [[each["file"], each["line"], each["finished"]] for each in sound["read"]],
        )
