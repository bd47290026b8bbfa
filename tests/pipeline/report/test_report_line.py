"""The report line says what a build cost and gained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gristmill.artifacts.manifest import EngineValidation, KlDivergence, Perplexity
from gristmill.artifacts.manifest_bytes import read_manifest
from gristmill.pipeline.report.line import report_line

GOLDEN = Path(__file__).parents[2] / "golden" / "artifact_v1"


def test_it_names_sizes_bits_and_the_price_in_quality() -> None:
    manifest, _ = read_manifest(GOLDEN)
    result = EngineValidation(Perplexity(20.0, 24.0), KlDivergence(0.15, 1.05), 0.79, {}, 0.0)
    line = report_line(replace(manifest, validation={"reference": result}))
    assert line.startswith(f"{manifest.name}: ")
    assert "perplexity 20.00 -> 24.00 (+20.0%)" in line
    assert "KL 0.1500 (p99 1.050)" in line
    assert "top-1 79.0%" in line
    assert "\n" not in line


def test_without_validation_it_claims_nothing_about_quality() -> None:
    manifest, _ = read_manifest(GOLDEN)
    assert "KL" not in report_line(replace(manifest, validation={}))
