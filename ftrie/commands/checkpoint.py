"""`ftrie checkpoint`: lists and verifies the checkpoints in a folder, also while a run is using it. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ftrie.command import command
from ftrie.terminal import JsonOption, picked, print_json, print_table
from model_store.flags import Argument


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
    from model_store.spec.spec import spec_from_json
    from trainer.checkpoint.file import Damaged, read
    from trainer.checkpoint.folder import Description, description_from_json
    from trainer.distributed.checkpoint import state_from_json

    try:
        written, arrays = read(path)
    except Damaged as error:
        return {"file": path.name, "damaged": str(error)}
    answer = {"file": path.name, "bytes": path.stat().st_size, "damaged": None}
    found = (
        state_from_json(written, path)
        if "distributed" in written
        else description_from_json(written, str(path))
    )
    common = {"model": spec_from_json(found.spec).model.name, "seconds": round(found.seconds, 3)}
    if isinstance(found, Description):
        stream = found.stream
        described = picked(
            found,
            "model rows keys rejected seconds created ftrie read stream arrays",
            **common,
            rejected=sum(found.reject_counts.values()),
            read=[
                {
                    "file": each.path,
                    "line": each.position.line,
                    "offset": each.position.offset,
                    "finished": each.disk_bytes is not None,
                }
                for each in found.read
            ],
            stream=stream and {name: stream.get(name) for name in ("sources", "places", "counts", "join")},
            arrays={name: array.nbytes for name, array in arrays.items()},
        )
        return answer | described
    # Of a distributed run: how far it is. The checkpoint has no position in the log, which is read again.
    problem = found.problems[-1]
    return answer | picked(
        found,
        "model problem iteration objective workers method seconds created ftrie",
        **common,
        problem=problem.name,
        iteration=problem.iterations[-1].number,
        objective=problem.iterations[-1].objective,
        workers=found.settings.workers,
        method=found.settings.method,
    )


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
