"""`ftrie warmup`: the flags and what is printed. ftrie.warmup compiles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ftrie import terminal
from ftrie.command import command
from ftrie.terminal import JsonOption, note, print_json, print_table
from model_store.flags import Flag

_SLOWEST = 10


@command("Try it", 5, "Example: ftrie warmup && ftrie demo")
def warmup(
    as_json: JsonOption = False,
    processes: Annotated[
        int | None, Flag("Processes that compile at once; default: one a core.", min=1)
    ] = None,
    state: Annotated[
        Path | None,
        Flag(
            "Also check that this ftrie can serve the last good models of `serve --state DIR`.",
            "DIR",
            file="reads",
        ),
    ] = None,
) -> None:
    """Compile what `ftrie train`, `serve` and `demo` run, so that none of them has to wait for the compiler.

    The compiled kernels stay in the user's cache folder until ftrie, Python, numba or the processor changes, also if
    the same version is installed again. Once all is there the command does nothing. Other learners, formats, and
    `ftrie trainer` compile what they need at their first start.

    Before an upgrade, run it with the new ftrie and --state: exit code 4 if a copy on disk cannot be served by it, so
    that a server would have nothing to start from while the store is away.
    """
    from ftrie.warmup import warm_up

    if state is not None:
        _check_state(state)
    made = warm_up(processes, terminal)
    slowest = sorted(made.kernels.items(), key=lambda kernel: -kernel[1])
    if as_json:
        print_json(
            {
                "seconds": made.seconds,
                "parts": [
                    {"part": part.name, "seconds": part.seconds, "kernels": part.kernels}
                    for part in made.parts
                ],
                "kernels": [{"kernel": name, "seconds": seconds} for name, seconds in slowest],
            }
        )
    elif made.parts:
        rows = [(part.name, part.kernels, f"{part.seconds:.1f}") for part in made.parts]
        print_table(("part", "kernels", "seconds"), rows)
        rows_of_kernels = [(name, f"{seconds:.1f}") for name, seconds in slowest[:_SLOWEST]]
        print_table(("slowest kernel", "seconds"), rows_of_kernels)
        note(f"compiled in {made.seconds:.1f} s; what was compiled stays in the cache")
    else:
        note("all kernels are in the cache: nothing to compile")


def _check_state(state: Path) -> None:
    from model_store.errors import ArtefactError
    from server.sync.last_good import check_state

    found = check_state(state)
    for name, problem in found.items():
        note(f"{name}: the last good model {f'cannot be served: {problem}' if problem else 'can be served'}")
    if bad := [name for name, problem in found.items() if problem]:
        raise ArtefactError(
            f"{state}: this ftrie cannot serve the copies of {', '.join(bad)}; upgrade while the store "
            "answers: servers then fetch the active version and write the copy again"
        )
