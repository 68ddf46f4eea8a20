"""What a command is made of: its flags, the files that they name, its place in the help, and how the help looks.

A command is a module of its name in `ftrie.commands` with a function of its name, decorated with `command`, or with a
`Commands` of its name. Parameters are flags, `name: Annotated[type, Flag(…)]`, or groups of them: dictionaries
(TypedDict), or dataclasses, whose fields may be groups again. A field without a `Flag` keeps its default.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from glob import glob, has_magic
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from types import MethodType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

import typer

from model_store.errors import UsageError
from model_store.files import check_writable
from model_store.flags import Argument, Flag

GROUPS = ("Learn", "Judge", "Serve", "Store", "Try it")
"""The groups of `ftrie --help`."""
_ARTICLES = {"int": "N", "float": "X", "str": "TEXT", "Path": "FILE"}
# A field names its unit, as all numbers of the code do; a flag has it in its metavar.
_UNITS = re.compile("_(s|mib)$")
# Prefixes of a path in sources of `ftrie trainer` and `ftrie replay` and in sinks of `ftrie serve`.
_PREFIXES = ("rows=", "impressions=", "clicks=", "file:")
_Function = TypeVar("_Function", bound=Callable[..., None])


class Commands(typer.Typer):
    """Commands of one name, such as `ftrie store`. place: its group in `ftrie --help`, and the position there."""

    def __init__(self, name: str, help: str, place: tuple[str, int] | None = None, **settings: Any) -> None:
        super().__init__(name=name, help=help, rich_markup_mode=None, **settings)
        self.place = place

    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """Add a function as a command; the function itself stays as it is. See `typer.Typer.command`."""
        add = super().command(name, **settings)

        def added(function: _Function) -> _Function:
            add(_with_flags(function))
            return function

        return added


def command(group: str, position: int, epilog: str) -> Callable[[_Function], _Function]:
    """A function that is the command of its module, at this place in `ftrie --help`; epilog: an example."""

    def marked(function: _Function) -> _Function:
        function.__dict__.update(place=(group, position), epilog=epilog)
        return function

    return marked


def command_named(name: str) -> Any:
    """The function or the `Commands` of a command; None if there is no command of this name."""
    module = f"ftrie.commands.{name.replace('-', '_')}"
    # The pattern first: find_spec of a name with a dot would import the part before it, or raise.
    if not re.fullmatch("[a-z-]+", name) or find_spec(module) is None:
        return None
    found = getattr(import_module(module), name.replace("-", "_"), None)
    # Modules beside the commands, such as `flags`, have no such mark.
    return found if hasattr(found, "place") else None


@functools.cache
def all_commands() -> Mapping[str, Any]:
    """Every command by its name, in the order of `ftrie --help`. Imports their modules."""
    folder = str(Path(__file__).with_name("commands"))
    names = [module.name.replace("_", "-") for module in iter_modules([folder])]
    found = {name: each for name in names if (each := command_named(name)) is not None}
    order = {name: (GROUPS.index(each.place[0]), each.place[1]) for name, each in found.items()}
    return {name: found[name] for name in sorted(found, key=order.__getitem__)}


# --- Flags ---


@dataclass(frozen=True)
class Parameter:
    """A parameter of a command: its name as the command line has it, its type, how it is declared, its default."""

    name: str
    kind: Any
    flag: Flag
    default: Any

    @property
    def shown(self) -> str:
        """Its name in messages: --rejects, or INPUT."""
        if isinstance(self.flag, Argument):
            return (self.flag.metavar or self.name.upper()).rstrip("…")
        return max(self.flag.names.split() or [f"--{self.name.replace('_', '-')}"], key=len)

    def value(self, values: Mapping[str, Any]) -> Any:
        """The setting's value of what was given for all parameters."""
        given = values[self.name]
        if get_origin(self.kind) is tuple:
            return tuple(given or ())
        if given is None:
            return None
        if self.flag.parse is not None:
            return self.flag.parse(given)
        return given * self.flag.unit if self.flag.unit is not None else given

    def signature(self) -> inspect.Parameter:
        """The parameter as typer reads it."""
        flag, kind, default = self.flag, self.kind, self.default
        settings: dict[str, Any] = {name: getattr(flag, name) for name in ("help", "metavar", "min", "max")}
        if get_origin(kind) is tuple:
            # typer collects repeated values in a list; `value` makes the tuple of it.
            kind = list[get_args(kind)[0]]  # type: ignore[misc]
            if default is not inspect.Parameter.empty:
                kind, default = kind | None, default or None
        if flag.unit is not None:
            kind, default = (int, round(default / flag.unit)) if default is not None else (int | None, None)
        declared: Any
        if isinstance(flag, Argument):
            declared = typer.Argument(**settings)
        else:
            # Without a name typer would give a bool a second flag, --no-NAME.
            names = flag.names.split() or ([self.shown] if kind is bool else [])
            settings |= {"exists": True, "dir_okay": False} if flag.exists else {}
            declared = typer.Option(*names, **settings, envvar=flag.env, callback=flag.callback)
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
        )


def parameters_of(function: Callable[..., Any]) -> dict[str, Parameter]:
    """The parameters of a command, those of its groups among them, by the name that the command line has."""
    return {each.name: each for each in _group(function).parameters()}


@dataclass(frozen=True)
class _Group:
    """Flags that become one value: the fields of a dataclass or a dictionary, or the parameters of a command."""

    make: Callable[..., Any]
    members: dict[str, Parameter | _Group]

    def parameters(self) -> Iterator[Parameter]:
        for each in self.members.values():
            yield from each.parameters() if isinstance(each, _Group) else [each]

    def value(self, values: Mapping[str, Any]) -> Any:
        given = {name: each.value(values) for name, each in self.members.items()}
        if is_dataclass(self.make):
            # What was not given has the default of the dataclass, which the flag's type may not allow.
            given = {name: each for name, each in given.items() if each is not None}
        return self.make(**given)


@functools.cache
def _group(of: Any) -> _Group:
    """The flags of a function's parameters, or of the fields of a dataclass or a TypedDict."""
    hints = get_type_hints(of, include_extras=True)
    if is_typeddict(of):
        defaults = dict.fromkeys(hints)
    elif is_dataclass(of):
        defaults = {each.name: _default(each) for each in fields(of)}
    else:
        defaults = {name: each.default for name, each in inspect.signature(of).parameters.items()}
    found = {name: _member(name, hints[name], default) for name, default in defaults.items()}
    return _Group(of, {name: each for name, each in found.items() if each is not None})


def _member(name: str, hint: Any, default: Any) -> Parameter | _Group | None:
    if is_typeddict(hint) or is_dataclass(hint):
        return _group(hint)
    flag = next((each for each in get_args(hint) if isinstance(each, Flag)), None)
    if flag is None:
        return None
    kind = get_args(hint)[0] if flag.type is None else flag.type
    if flag.parse is not None:
        kind, default = str if flag.default is not None else str | None, None
    elif type(None) in get_args(flag.type):
        default = None
    default = default if flag.default is None else flag.default
    return Parameter(_UNITS.sub("", name), kind, flag, False if kind is bool and default is None else default)


def _default(field: Any) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is MISSING else field.default


def _with_flags(function: Callable[..., None]) -> Callable[..., None]:
    """The function with one parameter for each flag, as typer reads it; it refuses outputs that are inputs."""
    parameters = parameters_of(function)

    @functools.wraps(function)
    def call(**values: Any) -> None:
        check_outputs(parameters, values)
        _group(function).value(values)

    # typer asks inspect.signature for the parameters, and get_type_hints for their types.
    signature = inspect.Signature([each.signature() for each in parameters.values()])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    call.__dict__["parameters"] = parameters
    return call


# --- Files ---


def check_outputs(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> None:
    """Raise OutputError if an output cannot be written, UsageError if it names the file of an input or another output.

    Truncating an input cannot be undone, and the result of a run that has no place is lost, so this precedes the work.
    Resolved paths and inodes are compared after expanding globs. An output inside a folder that is read is refused too:
    it would be read as a log.
    """
    named = [each for each in parameters.values() if each.flag.file is not None]
    read = [each for each in named if each.flag.file in ("reads", "follows")]
    written: list[tuple[str, Path]] = []
    for output in named:
        if output in read:
            continue
        is_folder = output.flag.metavar == "DIR"
        if isinstance(values.get(output.name), Path) and not is_folder and output.flag.file == "writes":
            check_writable(values[output.name])
        for text, path in _paths(values.get(output.name)):
            if path.exists() and not (path.is_file() or path.is_dir()):
                continue  # a device or a pipe
            flag = f"{output.shown} {text}"
            for each in read:
                for read_text, other in _paths(values.get(each.name)):
                    in_folder = path.parent == other and other.is_dir() and not is_folder
                    # A file that is followed may not exist yet; then samefile cannot tell.
                    is_new = path == other and each.flag.file == "follows"
                    if _same(path, other) or in_folder or is_new:
                        raise UsageError(
                            f"{flag}: {text} is an input of this run ({each.shown} {read_text}); write to another file"
                        )
            for other_flag, other in written:
                if path == other or _same(path, other):
                    raise UsageError(f"{other_flag} and {flag} name the same file; write to two files")
            written.append((flag, path))


def _paths(value: Any) -> Iterator[tuple[str, Path]]:
    """The files that a parameter's value may name, each as given and as a resolved path."""
    for given in value if isinstance(value, list | tuple) else [value]:
        text = str(given) if given is not None else ""
        for prefix in _PREFIXES:
            text = text.removeprefix(prefix)
        if text in ("", "-") or "\0" in text:
            continue
        # FILE@VARIANT of a policy, and FILE#PART of a source: the file is what precedes the mark.
        names = {text, text.partition("@")[0], text.partition("#")[0]} - {""}
        if has_magic(text):
            names.update(glob(text, recursive=True))
        for name in sorted(names):
            yield str(given), Path(name).resolve()


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False  # one of them does not exist


# --- Help ---


def plain_help(command: Any, is_root: bool = True) -> None:
    """Give the help of a command, and of all below it, groups, whole sentences, and words in place of Python types."""
    if isinstance(command, typer.core.TyperGroup):
        command.format_commands = MethodType(_write_groups if is_root else _write_commands, command)  # type: ignore[method-assign]
        for child in command.commands.values():
            plain_help(child, False)
    for param in command.params:
        _in_words(param)


def first_sentence(command: Any) -> str:
    """The first sentence of a command's help."""
    paragraph = " ".join((command.help or "").split("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    return sentence + stop.strip()


def _write_groups(group: Any, context: Any, formatter: Any) -> None:
    for title in GROUPS:
        names = [name for name, each in all_commands().items() if each.place[0] == title]
        with formatter.section(title):
            formatter.write_dl([(name, first_sentence(group.commands[name])) for name in names], col_max=20)


def _write_commands(group: Any, context: Any, formatter: Any) -> None:
    rows = [(name, first_sentence(each)) for name, each in group.commands.items() if not each.hidden]
    with formatter.section("Commands"):
        formatter.write_dl(rows, col_max=20)


def _in_words(param: Any) -> None:
    """Name a value by its metavar alone, and a range of numbers by words."""
    if isinstance(param, typer.core.TyperArgument):
        param.display_type_rich = lambda ctx: ""  # type: ignore[method-assign]
    elif isinstance(param, typer.core.TyperOption) and param.metavar is None and not param.is_flag:
        param.metavar = _ARTICLES.get(
            param.bare_type().partition("[")[2].rstrip("]") or param.bare_type(), "TEXT"
        )
    # A private method of typer: with a release that lacks it, the help has typer's own words for a range.
    if hasattr(param, "_get_number_range_help_str"):
        param._get_number_range_help_str = lambda: _range(param.min, param.max)


def _range(least: float | None, most: float | None) -> str | None:
    if least is None and most is None:
        return None
    if most is None:
        return f"at least {least:g}"
    return f"at most {most:g}" if least is None else f"from {least:g} to {most:g}"
