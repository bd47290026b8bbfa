"""What a build keeps for its reports inside the artifact: the same bytes for the same recipe.

report/layers.json                what each quantized linear lost
report/widths.json                how much each unit of linears loses at each width, where widths were chosen
report/data.json                  what calibration and validation read
report/experts.json               how many calibration tokens each expert saw, of a mixture
report/outliers.json              outlier channels of the original, behind each layer
report/validation-<engine>.json   every data set by itself, the worst passages, and tasks
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.manifest import KlDivergence, Perplexity
from gristmill.artifacts.reading import read_bounded
from gristmill.artifacts.strict_json import parse_canonical, to_canonical
from gristmill.pipeline.quantize.coverage import ExpertCoverage
from gristmill.pipeline.report.mix import DataMix
from gristmill.pipeline.search.widths import WidthChoice
from gristmill.pipeline.validate.differences import Difference
from gristmill.pipeline.validate.outliers import LayerOutliers
from gristmill.pipeline.validate.worst import Passage
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.files import make_folder, write_atomic

__all__ = [
    "DataSet",
    "LayerErrors",
    "Measured",
    "TaskScore",
    "read_coverage",
    "read_data_mix",
    "read_layer_errors",
    "read_measured",
    "read_outliers",
    "read_widths",
    "write_evidence",
]

_REPORT_FOLDER = "report"
_LAYERS_FILE = "layers.json"
_WIDTHS_FILE = "widths.json"
_DATA_FILE = "data.json"
_OUTLIERS_FILE = "outliers.json"
_EXPERTS_FILE = "experts.json"
_MAX_BYTES = 64 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LayerErrors:
    """`errors` maps a linear to |lost|^2 / |whole|^2 of its output on calibration data, or of its weight.

    `notes` are what quantization had to say, such as a raised damping.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    measure: Literal["output", "weight"]
    errors: Mapping[str, float]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DataSet:
    """One held-out data set on one engine."""

    name: str
    windows: int
    tokens: int
    perplexity: Perplexity
    kl: KlDivergence
    top1_agreement: float
    calibration_overlap: float


@dataclass(frozen=True, slots=True)
class TaskScore:
    """A task on one engine: the mean of each metric over its items, `metric` the main one.

    `original` is how that differs from the original model's, None where it was not asked.
    """

    metric: str
    items: int
    truncated: int
    values: Mapping[str, float]
    original: Difference | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What one engine's validation found; older artifacts have no `worst` and no `tasks`."""

    data: tuple[DataSet, ...]
    worst: tuple[Passage, ...] = ()
    tasks: Mapping[str, TaskScore] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Outliers:
    layers: tuple[LayerOutliers, ...]


_OUTLIERS = TypeAdapter(_Outliers)
_LAYER_ERRORS = TypeAdapter(LayerErrors)
_WIDTHS = TypeAdapter(WidthChoice)
_DATA_MIX = TypeAdapter(DataMix)
_COVERAGE = TypeAdapter(ExpertCoverage)
_MEASURED = TypeAdapter(Measured)


def write_evidence(
    folder: Path,
    layers: LayerErrors,
    widths: WidthChoice | None,
    mix: DataMix,
    outliers: tuple[LayerOutliers, ...],
    coverage: ExpertCoverage | None = None,
) -> None:
    """Write all into the artifact at `folder`; `coverage` is that of a mixture. Raises StorageError."""
    report = folder / _REPORT_FOLDER
    make_folder(report)
    write_atomic(report / _LAYERS_FILE, to_canonical(_LAYER_ERRORS, layers, _LAYERS_FILE))
    if widths is not None:
        write_atomic(report / _WIDTHS_FILE, to_canonical(_WIDTHS, widths, _WIDTHS_FILE))
    write_atomic(report / _DATA_FILE, to_canonical(_DATA_MIX, mix, _DATA_FILE))
    found = to_canonical(_OUTLIERS, _Outliers(outliers), _OUTLIERS_FILE)
    write_atomic(report / _OUTLIERS_FILE, found)
    if coverage is not None:
        write_atomic(report / _EXPERTS_FILE, to_canonical(_COVERAGE, coverage, _EXPERTS_FILE))


def read_layer_errors(artifact: Artifact) -> LayerErrors | None:
    """What each linear lost; None for an artifact that does not say. Raises ArtifactError, StorageError."""
    return _read(artifact, _LAYERS_FILE, partial(parse_canonical, _LAYER_ERRORS))


def read_widths(artifact: Artifact) -> WidthChoice | None:
    """How widths were chosen; None where the recipe decided. Raises ArtifactError, StorageError."""
    return _read(artifact, _WIDTHS_FILE, partial(_parse_growing, _WIDTHS))


def read_data_mix(artifact: Artifact) -> DataMix | None:
    """What was read; None for an artifact that does not say. Raises ArtifactError, StorageError."""
    return _read(artifact, _DATA_FILE, partial(parse_canonical, _DATA_MIX))


def read_coverage(artifact: Artifact) -> ExpertCoverage | None:
    """What each expert saw; None for a model without experts. Raises ArtifactError, StorageError."""
    return _read(artifact, _EXPERTS_FILE, partial(parse_canonical, _COVERAGE))


def read_outliers(artifact: Artifact) -> tuple[LayerOutliers, ...]:
    """Outlier channels, none for an artifact that does not say. Raises ArtifactError, StorageError."""
    found = _read(artifact, _OUTLIERS_FILE, partial(parse_canonical, _OUTLIERS))
    return found.layers if found else ()


def read_measured(artifact: Artifact, engine: str) -> Measured | None:
    """An engine's validation; None for an engine without. Raises ArtifactError, StorageError."""
    return _read(artifact, f"validation-{engine}.json", partial(_parse_growing, _MEASURED))


def _read(artifact: Artifact, name: str, parse: Callable[[bytes, Path], T]) -> T | None:
    if f"{_REPORT_FOLDER}/{name}" not in artifact.manifest.files:
        return None
    path = artifact.folder / _REPORT_FOLDER / name
    return parse(read_bounded(path, _MAX_BYTES), path)


def _parse_growing(adapter: TypeAdapter[T], data: bytes, path: Path) -> T:
    """What older artifacts may lack, with the default of each missing field."""
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ArtifactError(f"{path}: {fault['msg']}", found=".".join(map(str, fault["loc"]))) from error
