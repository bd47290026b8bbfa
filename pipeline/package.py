"""The package stage: everything that was made, as one immutable artifact in the store."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.artifacts import manifest as m
from gristmill.artifacts.artifact import Artifact
from gristmill.artifacts.blobs import link_or_copy
from gristmill.artifacts.engines import ENGINES_FOLDER, GOLDEN_FOLDER
from gristmill.artifacts.golden import write_golden
from gristmill.artifacts.proofs import proofs_file, write_proofs
from gristmill.artifacts.record import BuildRecord
from gristmill.artifacts.store import Store
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.checkpoint import CHECKPOINT
from gristmill.pipeline.model import BuildModel, stored_bits
from gristmill.pipeline.prove import Proof
from gristmill.pipeline.quantize.coverage import ExpertCoverage
from gristmill.pipeline.report.evidence import LayerErrors, write_evidence
from gristmill.pipeline.report.mix import DataMix
from gristmill.pipeline.search.widths import WidthChoice
from gristmill.pipeline.validate.gates import GateResult
from gristmill.pipeline.validate.result import ValidationResult
from gristmill.pipeline.worst_linears import worst_linears
from gristmill.recipes.resolve import resolved_dict, resolved_yaml
from gristmill.recipes.schema import Recipe
from gristmill.runtime.files import canonical_json, write_atomic
from gristmill.runtime.formats.select import FormatName
from gristmill.runtime.scheme import QuantScheme

__all__ = ["Built", "engine_validation", "gate_rows", "link_tree", "package", "write_report"]

_WORST_LAYERS = 16


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """What the earlier stages made.

    `model` is the one that was quantized, perhaps rotated before, `original` the one that was opened.
    `checkpoints` maps a format to its folder, the recipe's own first; `engines`
    a compile target to its folder; `gates` an engine to its gates. `widths` is
    None where the recipe alone decided them.
    """

    model: BuildModel
    original: BuildModel
    samples: TokenSamples | None
    checkpoints: Mapping[FormatName, Path]
    engines: Mapping[str, Path]
    layers: LayerErrors
    coverage: ExpertCoverage | None
    widths: WidthChoice | None
    mix: DataMix
    proof: Proof
    gates: Mapping[str, Sequence[GateResult]]
    determinism: m.Determinism


def package(recipe: Recipe, built: Built, store: Store, record: BuildRecord) -> Artifact:
    """Assemble the artifact in the store and point the recipe's tag at it. Raises StorageError."""
    recipe_bytes = resolved_yaml(recipe)
    with store.staging() as folder:
        own, *exports = built.checkpoints.items()
        link_tree(own[1], folder / CHECKPOINT)
        for name, path in exports:
            link_tree(path, folder / "exports" / name)
        write_atomic(folder / "recipe.yaml", recipe_bytes)
        (folder / GOLDEN_FOLDER).mkdir()
        write_golden(folder / GOLDEN_FOLDER, built.proof.golden)
        for target, path in built.engines.items():
            link_tree(path, folder / ENGINES_FOLDER / target)
        for proven in built.proof.engines:
            if proven.modes:
                write_proofs(folder / GOLDEN_FOLDER / proofs_file(proven.engine.target), proven.modes)
        write_report(folder, built.proof.validation)
        write_evidence(folder, built.layers, built.widths, built.mix, built.proof.outliers, built.coverage)
        manifest = _manifest(recipe, built, hashlib.sha256(recipe_bytes).hexdigest())
        return store.commit(folder, manifest, tag=recipe.tag, record=record)


def _manifest(recipe: Recipe, built: Built, recipe_sha256: str) -> m.Manifest:
    schemes = {name: scheme for name, scheme in built.model.schemes.items() if scheme is not None}
    samples, validation = built.samples, built.proof.validation
    worst = worst_linears(built.layers.errors, _WORST_LAYERS)
    return m.Manifest(
        schema_version=1,
        name=recipe.name,
        files={},
        lineage=m.Lineage(
            base_model=m.SourceModel(
                resolved_dict(recipe)["model"], built.model.source.revision, built.original.source.digest()
            ),
            parent=None,
            recipe=f"sha256:{recipe_sha256}",
            calibration=m.Calibration(samples.digest, samples.prompts, samples.tokens) if samples else None,
        ),
        schemes=m.group_schemes(schemes),
        skipped=tuple(sorted(name for name, scheme in built.model.schemes.items() if scheme is None)),
        bits_per_weight=_bits_per_weight(built.model, schemes),
        base_size_bytes=built.original.size_bytes,
        engines=tuple(sorted((proven.engine for proven in built.proof.engines), key=lambda e: e.target)),
        validation={target: engine_validation(result) for target, result in validation.items()},
        gates=tuple(row for target, gates in built.gates.items() for row in gate_rows(target, gates)),
        determinism=built.determinism,
        layer_errors=tuple(m.LayerError(name, error) for name, error in worst),
    )


def gate_rows(target: str, gates: Sequence[GateResult]) -> tuple[m.GateResult, ...]:
    """Gates as the manifest lists them."""
    return tuple(
        m.GateResult(target, gate.gate.metric, gate.gate.expression, gate.value, gate.passed)
        for gate in gates
    )


def write_report(folder: Path, validation: Mapping[str, ValidationResult]) -> None:
    """`report/validation-<engine>.json` for each engine: every data set by itself."""
    for target, result in validation.items():
        (folder / "report").mkdir(exist_ok=True)
        write_atomic(folder / "report" / f"validation-{target}.json", canonical_json(result.to_dict()))


def engine_validation(result: ValidationResult) -> m.EngineValidation:
    """What was measured on one engine, as the manifest has it."""
    metrics = result.metrics
    return m.EngineValidation(
        perplexity=m.Perplexity(metrics.perplexity_base, metrics.perplexity),
        kl=m.KlDivergence(metrics.kl_mean, metrics.kl_p99),
        top1_agreement=metrics.top1_agreement,
        tasks={},
        calibration_overlap=result.overlap,
    )


def _bits_per_weight(model: BuildModel, schemes: Mapping[str, QuantScheme]) -> m.BitsPerWeight:
    """Stored bits over quantized weights, and over all parameters of the model."""
    stored, weights = stored_bits(model.plan.linears, schemes)
    total = model.plan.num_parameters()
    plain_bits = 8 * model.size_bytes / total
    return m.BitsPerWeight(stored / weights, (stored + (total - weights) * plain_bits) / total)


def link_tree(source: Path, target: Path) -> None:
    """`source` again at `target`, sharing bytes where the file system allows it."""
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    link_or_copy(Path(os.fspath(source)), Path(os.fspath(target)))
