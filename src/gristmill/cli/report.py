"""`report`: one page that shows what an artifact cost, how good it is and how it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gristmill.cli.options import JsonOption, StoreOption, require_file_place
from gristmill.cli.output import print_fields, print_json
from gristmill.facade import default_store
from gristmill.pipeline.report.data import collect, report_json
from gristmill.pipeline.report.html import report_html
from gristmill.pipeline.report.summary import summary
from gristmill.runtime.files import make_folder, write_atomic

__all__ = ["report"]


def report(
    ref: Annotated[str, typer.Argument(metavar="REF", help="name, name:tag, name@sha256:... or a folder.")],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the page is written.")
    ] = Path("report.html"),
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a self-contained HTML page about an artifact and print its summary."""
    require_file_place("--output", output)
    opened = default_store(store)
    data = collect(opened, opened.resolve(ref))
    make_folder(output.parent)
    write_atomic(output, report_html(data).encode())
    if as_json:
        print_json({**report_json(data), "page": str(output)})
    else:
        print_fields({**summary(data), "page": str(output)})
