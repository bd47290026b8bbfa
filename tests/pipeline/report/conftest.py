"""A report's data with everything in it, made from the golden artifact: no model is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gristmill.artifacts import manifest as m
from gristmill.artifacts.artifact import open_artifact
from gristmill.artifacts.record import PEAK_AFTER, BuildRecord, StageRecord
from gristmill.calibration.samples import LengthQuantiles, SourceSummary
from gristmill.pipeline.report.builds import BuildPoint, Builds
from gristmill.pipeline.report.data import ReportData
from gristmill.pipeline.report.evidence import DataSet, LayerErrors, TaskScore
from gristmill.pipeline.report.excerpts import Excerpt, Piece
from gristmill.pipeline.report.mix import DataMix, Mix
from gristmill.pipeline.search.widths import UnitWidth, WidthChoice
from gristmill.pipeline.validate.differences import Difference
from gristmill.pipeline.validate.outliers import LayerOutliers

GOLDEN = Path(__file__).parents[2] / "golden" / "artifact_v1"
HOSTILE = (
    "<script>document.title = 'pwned'</script><img src=http://evil.test/x onerror=alert(1)>\"'&{{ 7 * 7 }}"
)
WORSE = Difference(0.52, 0.43, -0.09, -0.14, -0.04, 3, 21, 200, "worse")
ALONE = TaskScore(HOSTILE, 5, 1, {HOSTILE: 0.25}, None)


def _builds() -> Builds:
    def point(label: str, size: int, kl: float, *, present: bool = False, best: bool = True) -> BuildPoint:
        return BuildPoint(label, "", "native-x86", ("W4A16",), size, 5.0, kl, 20.0, 0.8, present, best)

    points = (
        point("small:latest", 90_000_000, 0.31),
        point(HOSTILE, 115_000_000, 0.13, present=True),
        point("other:latest", 118_000_000, 0.15, best=False),
        point("large:latest", 160_000_000, 0.01),
    )
    return Builds(points, other_models=2, damaged=1)


def _mix(name: str, octaves: tuple[int, ...]) -> Mix:
    source = SourceSummary(name, "chat", sum(octaves), 900, 1.0, 2, LengthQuantiles(3, 40, 90, 700), octaves)
    shares = {"letters": 0.7, "spaces": 0.2, "punctuation": 0.1}
    return Mix((source,), 8, 900, {"Latin": 0.99, "Cjk": 0.01}, shares)


@pytest.fixture(scope="session")
def hostile() -> str:
    """A text that would run in a page, or end one, if it were not escaped."""
    return HOSTILE


@pytest.fixture(scope="session")
def full_report() -> ReportData:
    """Every part of a report, with the hostile text wherever a text is not ours."""
    artifact = open_artifact(GOLDEN)
    result = m.EngineValidation(m.Perplexity(18.0, 20.0), m.KlDivergence(0.13, 0.8), 0.81, {}, 0.05)
    manifest = replace(
        artifact.manifest,
        lineage=replace(
            artifact.manifest.lineage, base_model=m.SourceModel(HOSTILE, HOSTILE, "sha256:" + "0" * 64)
        ),
        validation={"native-x86": result},
        gates=(m.GateResult("native-x86", "kl_mean", "< 0.2", 0.13, True),),
    )
    kinds = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")
    errors = {f"model.layers.{n}.{kind}": 0.001 * (n + 1) for n in range(30) for kind in kinds}
    pieces = (
        Piece("The mill stands ", None),
        Piece(HOSTILE, 3.0, base=HOSTILE, quantized="\n"),
        Piece(" by the river", 0.1),
    )
    stages = ("load", "quantize", "validate")
    return ReportData(
        artifact=replace(artifact, manifest=manifest),
        engine="native-x86",
        data={
            "native-x86": (
                DataSet(HOSTILE, 4, 99, m.Perplexity(18.0, 20.0), m.KlDivergence(0.13, 0.8), 0.81, 0.0),
            )
        },
        tasks={"native-x86": {"arc_easy": TaskScore("acc", 200, 0, {"acc": 0.43}, WORSE), HOSTILE: ALONE}},
        modes={},
        builds=_builds(),
        layers=LayerErrors("output", errors, (HOSTILE,)),
        widths=WidthChoice((4, 8), (UnitWidth((f"model.layers.0.{HOSTILE}",), (0.1, 0.01), 8, 4),)),
        outliers=tuple(LayerOutliers(n, 100.0 * (n + 1), 2.0, (7, 300)) for n in range(30)),
        mix=DataMix(_mix(HOSTILE, (0, 1, 4, 9, 3)), _mix("b.jsonl", (0, 0, 0, 2, 8, 1)), 0.02),
        worst=(Excerpt(HOSTILE, 0, 1.5, pieces),),
        record=BuildRecord(
            created="2026-11-30T10:00:00Z",
            seconds=60.0,
            host={"platform": HOSTILE, "recipe_folder": "/somebody/at/home"},
            resources={"peak_memory_bytes": 2e9} | {PEAK_AFTER + stage: 1e9 for stage in stages},
            stages=tuple(StageRecord(stage, 20.0, False) for stage in stages),
        ),
        recipe=f"name: {HOSTILE}\n",
        missing=(HOSTILE,),
    )
