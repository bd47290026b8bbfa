"""`compare`: several artifacts, models or servers side by side."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gristmill import facade
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.output import print_json, print_table
from gristmill.cli.progress import ConsoleProgress
from gristmill.cli.validate import ApiKeyOption, DataOption, LimitOption, TasksOption, TextOption, task_names

__all__ = ["compare"]


def compare(
    subjects: Annotated[
        list[str],
        typer.Argument(metavar="REF...", help="Artifacts, models or servers; the first is the base."),
    ],
    tasks: TasksOption = None,
    data: DataOption = None,
    text: TextOption = None,
    limit: LimitOption = None,
    api_key: ApiKeyOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put models side by side: size, what validation recorded, and tasks with intervals and verdicts."""
    with ConsoleProgress() as progress:
        columns = facade.compare(
            subjects,
            tasks=task_names(tasks),
            data=data,
            texts=text or (),
            limit=limit,
            api_key=api_key,
            store=store,
            progress=progress,
        )
    documents = [column.to_dict() for column in columns]
    if as_json:
        print_json(documents)
        return
    tasks_run = list(documents[0]["tasks"])
    print_table(
        ["", *(document["name"] for document in documents)],
        [
            *([label, *(show(document) for document in documents)] for label, show in _FACTS),
            *([name, *(_task(document["tasks"][name]) for document in documents)] for name in tasks_run),
        ],
    )


def _size(document: dict[str, Any]) -> str:
    return "-" if document["size_bytes"] is None else f"{document['size_bytes'] / 1e6:.1f} MB"


def _bits(document: dict[str, Any]) -> str:
    return "-" if document["bits_per_weight"] is None else f"{document['bits_per_weight']:.2f}"


def _perplexity(document: dict[str, Any]) -> str:
    perplexity = document["perplexity"]
    if perplexity is None:
        return "-"
    return f"{perplexity['quantized']:.4g} (original {perplexity['base']:.4g})"


def _kl(document: dict[str, Any]) -> str:
    return "-" if document["kl"] is None else f"{document['kl']['mean']:.4g}, p99 {document['kl']['p99']:.4g}"


def _top1(document: dict[str, Any]) -> str:
    return "-" if document["top1_agreement"] is None else f"{document['top1_agreement']:.1%}"


_FACTS = (
    ("checkpoint", _size),
    ("bits a weight", _bits),
    ("perplexity", _perplexity),
    ("KL", _kl),
    ("top-1", _top1),
)


def _task(task: dict[str, Any]) -> str:
    value = f"{task['values'][task['metric']]:.4f}"
    change = task["difference"]
    if change is None:
        return f"{value} of {task['items']} ({task['metric']})"
    interval = f"{change['difference']:+.4f} [{change['low']:+.4f}, {change['high']:+.4f}]"
    return f"{value} {interval} {change['verdict']}"
