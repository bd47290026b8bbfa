"""`--config FILE`: a command's options from a YAML file; the command line wins."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill.runtime.errors import InputError

__all__ = ["ConfigOption"]


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the command. Raises InputError for names that it lacks."""
    if path is not None:
        names = _parameters(context)
        values = _load(path)
        for name in values:
            if _key(name) not in names:
                raise _unknown(path, name, sorted(names))
        context.default_map = {names[_key(name)]: _text(value) for name, value in values.items()}
    return path


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML with options by their names, such as max-num-seqs: 8; the command line wins.",
        is_eager=True,
        callback=_read_config,
    ),
]


def _parameters(context: typer.Context) -> dict[str, str]:
    """The parameters that a file may set: an option by its long name, an argument by its own."""
    names: dict[str, str] = {}
    for parameter in context.command.params:
        if parameter.name is None or parameter.name in ("config", "help"):
            continue
        spelled = [option for option in parameter.opts if option.startswith("--")] or [parameter.name]
        names.update({_key(option): parameter.name for option in spelled})
    return names


def _load(path: Path) -> dict[str, Any]:
    import yaml  # only where there is such a file: a server has to start fast

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"can't read the options in {path}", found=error) from error
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise InputError(f"{path} holds no options", expected="lines such as max-num-seqs: 8")
    return values


def _key(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def _text(value: Any) -> Any:
    """A value as the command line would have it: what is wrong with it is then said in the same words."""
    if isinstance(value, list):
        return [str(entry) for entry in value]  # not further down: with anchors a list may hold itself
    return value if isinstance(value, bool) or value is None else str(value)


def _unknown(path: Path, name: str, known: list[str]) -> InputError:
    nearest = difflib.get_close_matches(_key(name), known, 1)
    return InputError(
        f"{path} has an unknown option",
        found=name,
        expected=nearest[0] if nearest else ", ".join(known),
    )
