"""The `gristmill` command: one Typer app, one file a command group, one place for errors."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

from gristmill.cli.option_errors import wrong_value
from gristmill.cli.output import print_error, say
from gristmill.runtime.errors import (
    EXIT_DONE,
    EXIT_INPUT,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    GristmillError,
    OutsideError,
)
from gristmill.runtime.files import storage_errors

__all__ = ["create_app", "main"]

# Module and function of each command. Only what runs is imported: a server needs nothing of a build to start.
_COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "plan": ("gristmill.cli.plan", "plan"),
        "build": ("gristmill.cli.build", "build"),
        "compile": ("gristmill.cli.compile", "compile_target"),
        "list": ("gristmill.cli.look", "list_artifacts"),
        "inspect": ("gristmill.cli.look", "inspect"),
        "verify": ("gristmill.cli.look", "verify"),
        "validate": ("gristmill.cli.validate", "validate"),
        "compare": ("gristmill.cli.compare", "compare"),
        "report": ("gristmill.cli.report", "report"),
        "chat": ("gristmill.cli.generate", "chat"),
        "generate": ("gristmill.cli.generate", "generate"),
        "serve": ("gristmill.cli.serve", "serve"),
        "bench": ("gristmill.cli.bench", "bench"),
        "doctor": ("gristmill.cli.doctor", "doctor"),
    }
)

_RESUMABLE = frozenset({"build", "compare", "compile", "validate"})


def create_app(names: Iterable[str] = tuple(_COMMANDS)) -> typer.Typer:
    """The command line with the named commands, all by default; other names are refused by Typer."""
    app = typer.Typer(
        name="gristmill",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_gristmill)
    for name in names:
        module, function = _COMMANDS[name]
        app.command(name)(getattr(import_module(module), function))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with the contract's code (see `gristmill.runtime.errors`)."""
    # Threads that spin at a barrier stall when a neighbour takes a core: prefill went from 0.5 s to 10 s.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # The search for plugins that other packages bring takes longer than reading a manifest.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_closed_streams()
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _open_closed_streams() -> None:
    """Put the null device where a process was started without a standard stream, as by `<&-`.

    Else the first file that is opened takes the stream's place, and what is printed goes into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open to the end


def _print_version(context: typer.Context, asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # only here: it brings a parser of mails along

        print(f"gristmill {version('gristmill')}")
        raise typer.Exit


def _gristmill(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and end.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """From one recipe to a small, proven, served language model."""


def _run(arguments: list[str]) -> int:
    # A command stands first; whatever else does is answered with the list of all.
    named = [name for name in arguments[:1] if name in _COMMANDS]
    command = typer.main.get_group(create_app(named or _COMMANDS))
    try:
        # Not `command.main`, which turns interrupts, EOFError and closed pipes into codes of its own.
        with storage_errors("the output"), command.make_context("gristmill", arguments) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    except GristmillError as error:
        print_error(error)
        return error.exit_code
    except (Abort, KeyboardInterrupt):
        of_server = any(argument.startswith(("http://", "https://")) for argument in arguments)
        resumes = named and named[0] in _RESUMABLE and not of_server  # what a server answers is not kept
        say(f"interrupted{': finished work is kept, the same command continues there' if resumes else ''}")
        return EXIT_INTERRUPTED
    except TyperException as error:
        return _usage(error)
    except BrokenPipeError:
        # The reader has had enough, as in `gristmill list | head`; keep Python quiet about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_DONE
    except MemoryError as error:
        refused = OutsideError(
            "the system has no more memory", found=str(error) or None, hint="free some, or raise the limit"
        )
        print_error(refused)
        return refused.exit_code
    except Exception as error:  # noqa: BLE001 - the last resort: whatever it is, it is ours
        return _internal(error)
    return EXIT_DONE


def _usage(error: TyperException) -> int:
    if (wrong := wrong_value(error)) is not None:
        print_error(wrong)
        return wrong.exit_code
    message = error.format_message()
    say(message if message.startswith("Usage:") else f"error: {message}; see gristmill --help")
    return EXIT_INPUT


def _internal(error: Exception) -> int:
    say(f"error: a fault of ours: {type(error).__name__}: {' '.join(str(error).split())}")
    if os.environ.get("GRISTMILL_DEBUG"):
        traceback.print_exception(error)
    else:
        say("  set GRISTMILL_DEBUG=1 to see where it happened, and please report it")
    return EXIT_INTERNAL


if __name__ == "__main__":
    main()
