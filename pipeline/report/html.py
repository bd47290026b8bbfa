"""The report as one HTML page that needs nothing else: no network, no script, no other file."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

from gristmill.artifacts.record import PEAK_AFTER, BuildRecord
from gristmill.pipeline.report.builds import Builds
from gristmill.pipeline.report.charts import (
    HeatMap,
    error_map,
    length_histogram,
    outlier_columns,
    size_against_quality,
)
from gristmill.pipeline.report.data import ReportData
from gristmill.pipeline.report.errors_by_layer import ErrorGrid, error_grid
from gristmill.pipeline.report.mix import mix_warnings
from gristmill.pipeline.search.widths import WidthChoice
from gristmill.pipeline.validate.outliers import LayerOutliers
from gristmill.pipeline.worst_linears import worst_linears
from gristmill.runtime.units import human_bytes

__all__ = ["report_html"]

Bars: TypeAlias = list[tuple[str, float, str, str]]
"""Label, share of the longest bar, value as text, class of the bar."""

_MACHINE = ("platform", "processor", "cores", "memory_bytes", "python")
"""What is told of the host; a page may be passed on, so never where files lie."""

_WORST_LAYERS = 8
_MOST_SCRIPTS = 6
_MOST_CHANNELS = 5
_DARKEST = 0.7
_DARKEST_KL = 4.0


def report_html(data: ReportData) -> str:
    """The page. Every text of the artifact is escaped: names, prompts and recipes are not ours."""
    environment = Environment(
        loader=PackageLoader("gristmill.pipeline.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": human_bytes, "percent": _percent, "shade": _shade, "visible": _visible}
    return environment.get_template("report.html").render(data=data, **_charts(data))


def _charts(data: ReportData) -> dict[str, Any]:
    """What the page draws beside the plain values of `data`."""
    manifest, mix = data.artifact.manifest, data.mix
    grid = error_grid(data.layers.errors) if data.layers and data.layers.errors else None
    calibration, validation = (mix.calibration, mix.validation) if mix else (None, None)
    return {
        "schemes": ", ".join(dict.fromkeys(group.name for group in manifest.schemes)) or "unquantized",
        "pareto": size_against_quality(data.builds.points, manifest.base_size_bytes),
        "left_out": _left_out(data.builds),
        "grid": grid,
        "heat": error_map(grid) if grid else None,
        "kind_bars": _kind_bars(grid) if grid else [],
        "layer_bars": _layer_bars(data),
        "sensitivity": _sensitivity(data.widths) if data.widths else None,
        "outliers": outlier_columns(data.outliers),
        "channels": _often(data.outliers),
        "warnings": mix_warnings(mix) if mix else (),
        "lengths": length_histogram(calibration, validation),
        "script_bars": _pairs(
            calibration.scripts if calibration else {}, validation.scripts if validation else {}
        ),
        "character_bars": _pairs(
            calibration.characters if calibration else {}, validation.characters if validation else {}
        ),
        "time_bars": _time_bars(data.record) if data.record else [],
        "memory_bars": _memory_bars(data.record) if data.record else [],
        "engine_rows": _engine_rows(data),
        "machine": _machine(data.record) if data.record else {},
    }


def _left_out(builds: Builds) -> list[str]:
    counts = {
        "of other models": builds.other_models,
        "measured on other text": builds.other_text,
        "not measured": builds.unmeasured,
        "damaged": builds.damaged,
    }
    return [f"{count} {reason}" for reason, count in counts.items() if count]


def _kind_bars(grid: ErrorGrid) -> Bars:
    largest = max(kind.mean for kind in grid.kinds) or 1.0
    return [(kind.kind, kind.mean / largest, f"{kind.mean:.3g}", "first") for kind in grid.kinds]


def _layer_bars(data: ReportData) -> Bars:
    worst = worst_linears(data.known_errors, _WORST_LAYERS)
    largest = max((error for _, error in worst), default=0.0) or 1.0
    return [(name, error / largest, f"{error:.3g}", "first") for name, error in worst]


def _sensitivity(widths: WidthChoice) -> HeatMap:
    """Every unit's loss at the narrowest width, under the name of its first linear."""
    return error_map(error_grid({unit.linears[0]: unit.losses[0] for unit in widths.units}))


def _often(layers: Sequence[LayerOutliers]) -> list[str]:
    """The channels that are outliers behind most layers."""
    counts = Counter(channel for layer in layers for channel in layer.channels)
    return [
        f"{channel} ({count} of {len(layers)} layers)"
        for channel, count in counts.most_common(_MOST_CHANNELS)
    ]


def _pairs(first: Mapping[str, float], second: Mapping[str, float]) -> Bars:
    """Two bars a name, calibration's and validation's, the most frequent names first."""
    names = sorted({*first, *second}, key=lambda name: (-max(first.get(name, 0), second.get(name, 0)), name))
    rows: Bars = []
    for name in names[:_MOST_SCRIPTS]:
        for label, shares, kind in ((name, first, "first"), ("", second, "second")):
            if shares:
                rows.append((label, shares.get(name, 0.0), _percent(shares.get(name, 0.0)), kind))
    return rows


def _time_bars(record: BuildRecord) -> Bars:
    longest = max((stage.seconds for stage in record.stages), default=0.0) or 1.0
    return [
        (
            f"{stage.stage} (done before)" if stage.reused else stage.stage,
            stage.seconds / longest,
            f"{stage.seconds:.1f} s",
            "first",
        )
        for stage in record.stages
    ]


def _memory_bars(record: BuildRecord) -> Bars:
    peaks = {stage.stage: record.resources.get(PEAK_AFTER + stage.stage) for stage in record.stages}
    known = {stage: peak for stage, peak in peaks.items() if peak is not None}
    largest = max(known.values(), default=0.0) or 1.0
    return [(stage, peak / largest, human_bytes(peak), "first") for stage, peak in known.items()]


def _machine(record: BuildRecord) -> dict[str, str]:
    found = {name.replace("_", " "): record.host[name] for name in _MACHINE if name in record.host}
    if "memory bytes" in found:
        found["memory"] = human_bytes(float(found.pop("memory bytes")))
    return found


def _engine_rows(data: ReportData) -> list[dict[str, Any]]:
    """Each engine in its default formats, then in the others that it was proved in."""
    rows: list[dict[str, Any]] = []
    for engine in data.artifact.manifest.engines:
        default = (engine.compute, engine.kv_cache)
        entry = {"engine": engine.target, "compute": engine.compute, "kv_cache": engine.kv_cache}
        rows.append({**entry, "proof": engine.golden, "default": True})
        rows += [
            {
                "engine": "",
                "compute": mode.compute,
                "kv_cache": mode.kv_cache,
                "proof": mode,
                "default": False,
            }
            for mode in data.modes.get(engine.target, ())
            if (mode.compute, mode.kv_cache) != default
        ]
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shade(kl: float) -> float:
    """How strongly a token is coloured: by the square root of its KL, up to a limit."""
    return round(_DARKEST * math.sqrt(min(kl, _DARKEST_KL) / _DARKEST_KL), 3)


def _visible(text: str) -> str:
    """A token with its line ends and outer spaces to be seen."""
    text = text.replace("\n", "\u23ce")
    inner = text.strip(" ")
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    return "\u2423" * (before if inner else len(text)) + inner + "\u2423" * (after if inner else 0)
