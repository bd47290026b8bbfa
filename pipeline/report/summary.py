"""The report in a few lines for a terminal."""

from __future__ import annotations

from gristmill.pipeline.report.data import ReportData
from gristmill.pipeline.report.evidence import TaskScore
from gristmill.pipeline.report.mix import mix_warnings
from gristmill.pipeline.worst_linears import worst_linears
from gristmill.runtime.units import human_bytes

__all__ = ["summary"]

_WORST_LAYERS = 3


def summary(data: ReportData) -> dict[str, str]:
    """Names and values, one line each; a name whose value is not known is left out."""
    manifest = data.artifact.manifest
    bits = manifest.bits_per_weight
    lines = {
        "artifact": data.artifact.ref,
        "base model": manifest.lineage.base_model.source,
        "size": f"{human_bytes(manifest.base_size_bytes)} -> {human_bytes(manifest.size_of('checkpoint/'))}",
        "bits a weight": f"{bits.quantized_layers:.2f} quantized, {bits.whole_model:.2f} whole model",
    }
    if data.engine is not None:
        result = manifest.validation[data.engine]
        lines[f"on {data.engine}"] = (
            f"KL {result.kl.mean:.4f} (p99 {result.kl.p99:.3f}), "
            f"perplexity {result.perplexity.base:.2f} -> {result.perplexity.quantized:.2f}, "
            f"top-1 {result.top1_agreement:.1%}"
        )
    for engine, scores in data.tasks.items():
        lines[f"tasks on {engine}"] = ", ".join(_task(task, score) for task, score in scores.items())
    if data.passed is not None:
        gates = ", ".join(f"{gate.metric} {gate.value:.4g} ({gate.limit})" for gate in manifest.gates)
        lines["gates"] = f"{'passed' if data.passed else 'FAILED'}: {gates}"
    if len(data.builds.points) > 1:
        better = [point.label for point in data.builds.points if point.best]
        lines["best by size"] = ", ".join(better)
    if worst := worst_linears(data.known_errors, _WORST_LAYERS):
        lines["worst layers"] = ", ".join(f"{name} {error:.3g}" for name, error in worst)
    if data.widths is not None:
        lines["widths"] = "; ".join((data.widths.counts, *data.widths.promotions))
    if data.mix is not None and (warnings := mix_warnings(data.mix)):
        lines["data"] = "; ".join(warnings)
    if data.record is not None and data.record.stages:
        stages = ", ".join(f"{stage.stage} {stage.seconds:.0f} s" for stage in data.record.stages)
        lines["built"] = f"{data.record.created} in {data.record.seconds:.0f} s: {stages}"
    if data.missing:
        lines["not known"] = " ".join(data.missing)
    return lines


def _task(name: str, score: TaskScore) -> str:
    value = f"{score.values[score.metric]:.4g}"
    if score.original is None:
        return f"{name} {value}"
    return f"{name} {score.original.base:.4g} -> {value} ({score.original.verdict})"
