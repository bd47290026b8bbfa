"""`validate`: an artifact or a model on held-out data and tasks, beside its original."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill import facade
from gristmill.cli.engine_options import (
    ComputeOption,
    EngineChoice,
    EngineOption,
    KVCacheOption,
    ThreadsOption,
)
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.output import print_fields, print_json, print_table, say
from gristmill.cli.progress import ConsoleProgress
from gristmill.runtime.errors import EXIT_CHECK

__all__ = [
    "ApiKeyOption",
    "DataOption",
    "LimitOption",
    "ModelOption",
    "TasksOption",
    "task_names",
    "validate",
]

TasksOption = Annotated[
    str | None, typer.Option("--tasks", metavar="A,B...", help="Tasks to run, such as arc_easy,lambada.")
]
DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="The folder that holds the tasks' files.")
]
TextOption = Annotated[
    list[Path] | None,
    typer.Option("--text", metavar="FILE", help="Text or chats to predict, in bits a byte; repeatable."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", metavar="N", min=1, help="Items of each task; else all.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Of several that a server has.")
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option("--api-key", envvar="GRISTMILL_API_KEY", metavar="KEY", help="For the server."),
]


def validate(
    subject: Annotated[
        str,
        typer.Argument(metavar="REF, MODEL or URL", help="An artifact, a model as in a recipe, or a server."),
    ],
    tasks: TasksOption = None,
    data: DataOption = None,
    text: TextOption = None,
    limit: LimitOption = None,
    recipe_folder: Annotated[
        Path | None,
        typer.Option("--recipe-folder", metavar="DIR", help="The recipe's files, if they moved."),
    ] = None,
    engine: EngineOption = None,
    compute: ComputeOption = None,
    kv_cache_dtype: KVCacheOption = "auto",
    threads: ThreadsOption = None,
    model: ModelOption = None,
    api_key: ApiKeyOption = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a model on held-out data and tasks, beside its original where that is known."""
    choice = EngineChoice(engine, compute, kv_cache_dtype, threads)
    with ConsoleProgress() as progress:
        result = facade.validate(
            subject,
            tasks=task_names(tasks),
            data=data,
            texts=text or (),
            limit=limit,
            engine=choice.engine,
            settings=choice.settings(),
            recipe_folder=recipe_folder,
            model=model,
            api_key=api_key,
            store=store,
            progress=progress,
        )
    document = result.to_dict()
    if as_json:
        print_json(document)
    else:
        _show(document)
    failed = [gate["metric"] for gate in document["gates"] if not gate["passed"]]
    if failed:
        say(f"error: validation gates failed: {', '.join(failed)}")
        raise typer.Exit(EXIT_CHECK)


def task_names(option: str | None) -> tuple[str, ...]:
    """The names of a list with commas."""
    return () if option is None else tuple(name.strip() for name in option.split(","))


def _show(document: dict[str, Any]) -> None:
    fields: dict[str, object] = {"name": document["name"]}
    if "perplexity" in document:
        perplexity, kl = document["perplexity"], document["kl"]
        fields["perplexity"] = f"{perplexity['quantized']:.4g}, the original's {perplexity['base']:.4g}"
        fields["KL"] = f"{kl['mean']:.4g} nats, p99 {kl['p99']:.4g}"
        fields["top-1"] = f"{document['top1_agreement']:.1%} as the original"
    print_fields(fields)
    if document.get("data"):
        print_table(
            ["DATA", "WINDOWS", "PERPLEXITY", "ORIGINAL", "LOSS", "95 %", "KL", "95 %", "TOP-1", "VERDICT"],
            [_data_row(data) for data in document["data"]],
        )
    for gate in document["gates"]:
        print(f"gate {gate['metric']} {gate['limit']}: {gate['value']:.4g} {_passed(gate['passed'])}")
    if document["tasks"]:
        print_table(
            ["TASK", "ITEMS", "METRIC", "VALUE", "ORIGINAL", "DIFFERENCE", "95 %", "FLIPS", "VERDICT"],
            [_row(name, task) for name, task in document["tasks"].items()],
        )
    for name, task in document["tasks"].items():
        if task["truncated"]:
            print(
                f"{name}: {task['truncated']} of {task['items']} prompts lost their beginning to the context"
            )


def _data_row(data: dict[str, Any]) -> list[str]:
    loss, (low, high) = data["loss"], data["kl_interval"]
    return [
        data["name"],
        str(data["windows"]),
        f"{data['perplexity']['quantized']:.4g}",
        f"{data['perplexity']['base']:.4g}",
        f"{loss['difference']:+.4f}",
        f"{loss['low']:+.4f} to {loss['high']:+.4f}",
        f"{data['kl']['mean']:.4f}",
        f"{low:.4f} to {high:.4f}",
        f"{data['top1_agreement']:.1%}",
        loss["verdict"],
    ]


def _passed(passed: bool) -> str:
    return "passed" if passed else "failed"


def _row(name: str, task: dict[str, Any]) -> list[str]:
    row = [name, str(task["items"]), task["metric"], f"{task['values'][task['metric']]:.4f}"]
    original = task["original"]
    if original is None:
        return [*row, "-", "-", "-", "-", "-"]
    return [
        *row,
        f"{original['base']:.4f}",
        f"{original['difference']:+.4f}",
        f"{original['low']:+.4f} to {original['high']:+.4f}",
        f"+{original['improved']} -{original['worsened']}",
        original["verdict"],
    ]
