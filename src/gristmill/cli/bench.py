"""`bench`: load on a server, ours or any other that speaks OpenAI's API."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gristmill import facade
from gristmill.cli.bench_loads import LengthOptions, LoadOptions, positive
from gristmill.cli.bench_report import print_changes, print_history, print_runs
from gristmill.cli.options import JsonOption, StoreOption, require_file_place
from gristmill.cli.output import print_json, say
from gristmill.cli.progress import ConsoleProgress
from gristmill.runtime.errors import EXIT_INTERRUPTED, InputError
from gristmill.runtime.files import canonical_json, write_atomic
from gristmill.runtime.loadtest.compare import compare_runs, load_runs
from gristmill.runtime.loadtest.environment import describe_environment
from gristmill.runtime.loadtest.metrics import ServiceLevel
from gristmill.runtime.loadtest.plot import check_plot, plot_runs
from gristmill.runtime.loadtest.server_process import started_server
from gristmill.runtime.loadtest.session import LoadTest
from gristmill.runtime.loadtest.tuning_log import append_runs, read_runs
from gristmill.runtime.loadtest.workload import Workload

__all__ = ["bench"]

_LOG = "bench.jsonl"


def bench(
    target: Annotated[
        str | None, typer.Argument(metavar="URL or REF", help="A server, or an artifact to serve meanwhile.")
    ] = None,
    concurrency: Annotated[
        list[str] | None,
        typer.Option("--concurrency", metavar="N,N...", help="Clients that each wait for their answer."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option("--rate", metavar="R,R...", help="Requests a second, however slow the answers are."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="CSV of real requests: their times and lengths."),
    ] = None,
    trace_speed: Annotated[
        float, typer.Option("--trace-speed", metavar="X", help="Times as fast as the trace.")
    ] = 1.0,
    trace_max_tokens: Annotated[
        int | None,
        typer.Option("--trace-max-tokens", metavar="N", help="Shorten what is longer, to fit the model."),
    ] = None,
    prompt_tokens: Annotated[
        list[str] | None, typer.Option("--prompt-tokens", metavar="N,N...", help="Lengths of prompts; 128.")
    ] = None,
    output_tokens: Annotated[
        list[str] | None, typer.Option("--output-tokens", metavar="N,N...", help="Lengths of answers; 128.")
    ] = None,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Draw lengths at random: 128, 1024, 4096 + 128, 512, 2048.")
    ] = False,
    shared_prefix_tokens: Annotated[
        int, typer.Option("--shared-prefix-tokens", metavar="N", help="The same text before all prompts.")
    ] = 0,
    requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", help="Requests of each load.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option("--duration", metavar="S", help="Seconds in which requests are sent.")
    ] = None,
    warmup: Annotated[
        int | None, typer.Option("--warmup", metavar="N", help="Requests before that do not count.")
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", help="Measure each load N times, to know the noise.")
    ] = 1,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Of several that it serves.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="GRISTMILL_API_KEY", metavar="KEY", help="For the server."),
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Send prompts as token ids instead of words.")
    ] = False,
    slo_ttft: Annotated[
        float | None, typer.Option("--slo-ttft", metavar="MS", help="First token within this, for goodput.")
    ] = None,
    slo_tpot: Annotated[
        float | None, typer.Option("--slo-tpot", metavar="MS", help="Time a token within this, for goodput.")
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option("--price-per-hour", metavar="P", help="Of the machine, for the cost of tokens."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", metavar="S", help="For one request.")] = 600.0,
    serve_options: Annotated[
        str, typer.Option("--serve-options", metavar="TEXT", help="Options of gristmill serve for a REF.")
    ] = "",
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Repeats prompts and times; else new ones.")
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Kept with the result.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the loads: .png, .svg or .pdf.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the results as JSON.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Tuning log; else bench.jsonl in the store.")
    ] = None,
    history: Annotated[bool, typer.Option("--history", help="List what the tuning log holds.")] = False,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option("--compare", metavar="A B", help="What changed from A to B.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency and throughput of a server under load."""
    log = log or facade.default_store(store).path / _LOG
    if history:
        print_history(read_runs(log), as_json=as_json)
        return
    if compare is not None:
        before, after = map(load_runs, compare)
        print_changes(compare_runs(before, after), as_json=as_json)
        return
    if target is None:
        raise InputError("nothing to measure", expected="a URL or a REF, --history or --compare A B")
    _check_files(output, plot)
    if warmup is not None and warmup < 0:
        raise InputError("--warmup", found=warmup, expected="0 or more")
    lengths = LengthOptions(prompt_tokens, output_tokens, mixed, shared_prefix_tokens)
    loads = LoadOptions(
        concurrency, rate, trace, trace_speed, trace_max_tokens, requests, duration, repeat, seed
    )
    level = ServiceLevel(positive("--slo-ttft", slo_ttft), positive("--slo-tpot", slo_tpot))
    price = positive("--price-per-hour", price_per_hour)
    test = LoadTest("", model, api_key, token_ids, positive("--timeout", timeout), warmup, level, price)
    runs = _measure(target, test, loads.workloads(lengths), store, serve_options)
    runs = [{**run, "note": note} for run in runs] if note else runs
    try:
        append_runs(log, runs)
    finally:  # what was measured is not lost with a log that can't be written
        _show(runs, output, plot, as_json=as_json)
    if runs[-1]["interrupted"]:
        say("interrupted: this is what was measured until then")
        raise typer.Exit(EXIT_INTERRUPTED)


def _check_files(output: Path | None, plot: Path | None) -> None:
    """Refuse what can't be written before anything is measured."""
    if plot is not None:
        check_plot(plot)
    for option, path in (("--output", output), ("--plot", plot)):
        if path is None:
            continue
        if not path.absolute().parent.is_dir():
            raise InputError(f"{option} {path}", found="no such folder")
        require_file_place(option, path)


def _measure(
    target: str, test: LoadTest, workloads: Sequence[Workload], store: Path | None, serve_options: str
) -> list[dict[str, Any]]:
    """Run all loads against the URL, or against a server of the REF that is started for them."""
    environment = describe_environment()
    if target.startswith(("http://", "https://")):
        with ConsoleProgress() as progress:
            runs = replace(test, url=target).run(workloads, progress)
        return [{**run, "environment": {**environment, "url": target}} for run in runs]
    facade.engine_folder(target, store=store)  # a wrong REF is told here, not by the child
    command = [sys.executable, "-m", "gristmill.cli.app", "serve", target, "--port", "0", "--json"]
    command += [
        "--store",
        str(facade.default_store(store).path),
        "--log-level",
        "warning",
        *shlex.split(serve_options),
    ]
    with started_server(command) as server, ConsoleProgress() as progress:
        runs = replace(test, url=server.url).run(workloads, progress)
        served = {"ref": target, "serve_options": serve_options, "resident_bytes": server.resident_bytes()}
    return [{**run, "environment": {**environment, **served}} for run in runs]


def _show(runs: Sequence[dict[str, Any]], output: Path | None, plot: Path | None, *, as_json: bool) -> None:
    """One run is an object, several are a list of them."""
    document: Any = runs[0] if len(runs) == 1 else list(runs)
    if as_json:
        print_json(document)
    else:
        print_runs(runs)
    if output is not None:
        write_atomic(output, canonical_json(document))
    if plot is not None:
        plot_runs(plot, runs)
