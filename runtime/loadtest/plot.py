"""A picture of one or more runs: throughput and latency over load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gristmill.runtime.errors import InputError, UnsupportedError
from gristmill.runtime.files import storage_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plot", "plot_runs"]

_FORMATS = (".png", ".svg", ".pdf")
_LATENCIES = (("ttft_ms", "time to first token, ms"), ("tpot_ms", "time per output token, ms"))


def check_plot(path: Path) -> None:
    """Refuse what can't be drawn, before anything is measured. Raises InputError, UnsupportedError."""
    if path.suffix not in _FORMATS:
        raise InputError(f"--plot {path}", found=path.suffix or "no ending", expected=" or ".join(_FORMATS))
    try:
        import matplotlib  # noqa: F401 - only asked whether it is there
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "--plot needs matplotlib", hint="install it with pip install 'gristmill[bench]'"
        ) from error


def plot_runs(path: Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Draw all runs, one place on the axis each. Raises StorageError, and what `check_plot` raises."""
    check_plot(path)
    from matplotlib.figure import Figure  # heavy: nothing else needs it

    names = [str(run["workload"]["name"]) for run in runs]
    figure = Figure(figsize=(13, 5), layout="constrained")
    throughput, *latencies = figure.subplots(1, 3)
    throughput.bar(range(len(runs)), [run["output_tokens_per_s"] for run in runs])
    throughput.set_title("output tokens per second")
    for axes, (metric, title) in zip(latencies, _LATENCIES, strict=True):
        for percentile in ("p50", "p95", "p99"):
            values = [run[metric][percentile] for run in runs]
            axes.plot(range(len(runs)), values, marker="o", label=percentile)
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.legend()
    for axes in (throughput, *latencies):
        _name_places(axes, names)
    with storage_errors(path):
        figure.savefig(path)


def _name_places(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=30, horizontalalignment="right", fontsize=8)
