"""The recipe: everything a build is told, as frozen pydantic models.

Types are strict (a number written as text is not a number) and unknown keys
are refused. Rules that compare two keys sit on the later key, so that every
fault of a recipe is found in one pass. `load.py` reads YAML into these models
and says where each fault lies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from gristmill.recipes.gates import Gate
from gristmill.recipes.kv_cache import KVCacheSettings
from gristmill.recipes.quantize import QuantizeSettings
from gristmill.recipes.refusals import refusal
from gristmill.recipes.rules import GateField, InputFile, TaskGateField, infer_kind, require_digest
from gristmill.recipes.task_names import TaskName
from gristmill.runtime.prompt_kind import PromptKind

__all__ = [
    "CalibrationSettings",
    "GoldenSettings",
    "KVCacheSettings",
    "PromptSet",
    "QuantizeSettings",
    "Recipe",
    "ValidationData",
    "ValidationGates",
    "ValidationSettings",
    "ValidationTask",
]

CheckpointFormat = Literal["compressed-tensors", "awq"]
EngineTarget = Literal["native-x86"]
CompileTarget = Literal["compressed-tensors", "awq", "native-x86"]

_CONFIG = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PromptSet(BaseModel):
    """One file of calibration prompts."""

    model_config = _CONFIG

    path: InputFile = Field(description="file, relative to the recipe")
    share: float | None = Field(
        default=None, gt=0, description="weight beside the other files; all give one or none"
    )
    kind: PromptKind = Field(
        default=None, validate_default=True, description="what it holds; told from the suffix"
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="pins the content of the file"
    )

    _kind = field_validator("kind", mode="before")(infer_kind)
    _sha256 = field_validator("sha256")(require_digest)


class CalibrationSettings(BaseModel):
    """What the model reads while its inputs are measured."""

    model_config = _CONFIG

    prompts: tuple[PromptSet, ...] = Field(min_length=1, description="files of prompts")
    samples: int = Field(default=64, ge=1, description="sequences")
    max_tokens: int = Field(default=512, ge=2, description="tokens of a sequence")
    seed: int = Field(default=0, ge=0, description="order of the prompts")
    pack: bool = Field(default=True, description="fill each sequence with several prompts")
    min_expert_tokens: int = Field(
        default=1024,
        ge=0,
        description="for experts of a mixture that see fewer, other tokens of their layer count too",
    )

    @field_validator("prompts")
    @classmethod
    def _all_shares_or_none(cls, prompts: tuple[PromptSet, ...]) -> tuple[PromptSet, ...]:
        given = [prompt.share is not None for prompt in prompts]
        if any(given) and not all(given):
            raise refusal(
                "a share on every file, or on none",
                found=f"a share on {sum(given)} of {len(prompts)} files",
            )
        return prompts

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each file, summing to 1."""
        weights = [prompt.share or 1.0 for prompt in self.prompts]
        return tuple(weight / sum(weights) for weight in weights)


class ValidationData(BaseModel):
    """One file of held-out data."""

    model_config = _CONFIG

    path: InputFile = Field(description="file, relative to the recipe")
    kind: PromptKind = Field(
        default=None, validate_default=True, description="what it holds; told from the suffix"
    )
    window: int = Field(default=512, ge=2, description="tokens that the model reads at once")
    tokens: int = Field(default=8192, ge=2, description="tokens used at most, in whole windows")
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="pins the content of the file"
    )

    _kind = field_validator("kind", mode="before")(infer_kind)
    _sha256 = field_validator("sha256")(require_digest)

    @field_validator("tokens")
    @classmethod
    def _one_window_at_least(cls, tokens: int, info: ValidationInfo) -> int:
        window = info.data.get("window", 2)
        if tokens < window:
            raise refusal(f"at least one window of {window} tokens")
        return tokens


class ValidationTask(BaseModel):
    """One task, on the result and on the original."""

    model_config = _CONFIG

    task: TaskName = Field(description="its name")
    path: InputFile = Field(description="its items, relative to the recipe")
    limit: int | None = Field(default=None, ge=1, description="items used at most; all")
    gate: TaskGateField | None = Field(
        default=None, description='limit of the difference to the original, such as "> -2%"'
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="pins the content of the file"
    )

    _sha256 = field_validator("sha256")(require_digest)


class ValidationGates(BaseModel):
    """Limits over all validation data together."""

    model_config = _CONFIG

    kl_mean: GateField | None = Field(default=None, description="mean KL divergence, nats")
    kl_p99: GateField | None = Field(default=None, description="99th percentile of KL, nats")
    top1_agreement: GateField | None = Field(default=None, description="share of equal most likely tokens")
    perplexity: GateField | None = Field(default=None, description="of the quantized model")
    perplexity_increase: GateField | None = Field(default=None, description="over the original's")

    @property
    def all(self) -> tuple[Gate, ...]:
        """The gates that are set, in the order of the schema."""
        gates = (getattr(self, name) for name in type(self).model_fields)
        return tuple(gate for gate in gates if gate is not None)


class ValidationSettings(BaseModel):
    """How the result is compared with the original."""

    model_config = _CONFIG

    data: tuple[ValidationData, ...] = Field(min_length=1, description="held-out files")
    gates: ValidationGates = Field(default_factory=ValidationGates, description="limits that must hold")
    tasks: tuple[ValidationTask, ...] = Field(default=(), description="tasks with right and wrong answers")

    auto_repair: bool = Field(
        default=False, description="widen the costliest layers until the gates pass, as few as possible"
    )

    @field_validator("tasks")
    @classmethod
    def _each_task_once(cls, tasks: tuple[ValidationTask, ...]) -> tuple[ValidationTask, ...]:
        names = [entry.task for entry in tasks]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise refusal("each task once", found=f"{name} twice")
        return tasks

    @field_validator("auto_repair")
    @classmethod
    def _gates_to_pass(cls, auto_repair: bool, info: ValidationInfo) -> bool:
        gates = info.data.get("gates")
        of_tasks = any(entry.gate is not None for entry in info.data.get("tasks", ()))
        if auto_repair and gates is not None and not gates.all and not of_tasks:
            raise refusal("gates to repair for", found="auto_repair without gates")
        return auto_repair


class GoldenSettings(BaseModel):
    """Prompts whose logits are stored in the artifact, so that every engine can prove itself."""

    model_config = _CONFIG

    prompts: InputFile | None = Field(
        default=None, description="file of prompts; else the start of held-out windows"
    )
    count: int = Field(default=4, ge=1, le=64, description="prompts stored")


class Recipe(BaseModel):
    """One build, from a model and prompts to a packaged artifact.

    File paths are absolute once loaded. `base` is the folder of the recipe
    file, against which a relative `model` path is read.
    """

    model_config = _CONFIG

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,127}$", description="name of the artifact")
    tag: str = Field(
        default="latest", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", description="tag of the artifact"
    )
    model: str = Field(min_length=1, description="package:NAME, a folder, a .gguf file or org/name@revision")
    calibration: CalibrationSettings | None = Field(
        default=None, description="needed by all methods but rtn, and by static activations"
    )
    quantize: QuantizeSettings = Field(description="how weights are stored and rounded")
    kv_cache: KVCacheSettings = Field(
        default_factory=KVCacheSettings, validate_default=True, description="how keys and values are stored"
    )
    validation: ValidationSettings | None = Field(
        default=None, alias="validate", description="proof of the result"
    )
    checkpoint: CheckpointFormat = Field(default="compressed-tensors", description="format of the checkpoint")
    compile: tuple[CompileTarget, ...] = Field(
        default=(), description="engines, and further formats of the checkpoint"
    )
    golden: GoldenSettings = Field(default_factory=GoldenSettings, description="prompts for self-tests")

    _base: Path = PrivateAttr(default_factory=Path.cwd)

    def model_post_init(self, context: Any) -> None:
        """Remember the recipe's folder, handed in as validation context."""
        if isinstance(context, dict) and "base" in context:
            self._base = Path(context["base"])

    @property
    def base(self) -> Path:
        """The folder that relative paths of the recipe start from."""
        return self._base

    @property
    def repairs(self) -> bool:
        """Whether layers are widened until the gates pass."""
        return self.validation is not None and self.validation.auto_repair

    @property
    def engines(self) -> tuple[EngineTarget, ...]:
        """Those targets of `compile` that serve."""
        return tuple(target for target in self.compile if target == "native-x86")

    @property
    def exports(self) -> tuple[CheckpointFormat, ...]:
        """Those targets of `compile` that are formats of the checkpoint."""
        return tuple(target for target in self.compile if target != "native-x86")

    @field_validator("quantize")
    @classmethod
    def _prompts_for_methods(cls, quantize: QuantizeSettings, info: ValidationInfo) -> QuantizeSettings:
        without = "calibration" in info.data and info.data["calibration"] is None
        if without and quantize.activations is not None and quantize.activations.static:
            raise refusal(
                "a calibration block, or scales for each token",
                found="static activations without calibration",
            )
        if quantize.search is not None and without:
            raise refusal("a calibration block, on which widths are tried", found="a search without")
        if quantize.method not in ("rtn", "hqq") and without:
            raise refusal(
                "a calibration block, or the method rtn or hqq",
                found=f"the method {quantize.method} without calibration",
            )
        return quantize

    @field_validator("kv_cache")
    @classmethod
    def _prompts_for_scales(cls, kv_cache: KVCacheSettings, info: ValidationInfo) -> KVCacheSettings:
        if kv_cache.scales is not None and "calibration" in info.data and info.data["calibration"] is None:
            raise refusal("a calibration block, or another dtype", found="fp8 scales without calibration")
        return kv_cache

    @field_validator("validation")
    @classmethod
    def _widths_to_repair(
        cls, validation: ValidationSettings | None, info: ValidationInfo
    ) -> ValidationSettings | None:
        """Repair widens weights, which needs prompts to measure on and widths that may change."""
        quantize = info.data.get("quantize")
        if validation is None or not validation.auto_repair or quantize is None:
            return validation
        if "calibration" in info.data and info.data["calibration"] is None:
            raise refusal("a calibration block, on which layers are compared", found="auto_repair without")
        if quantize.type != "int" or quantize.activation is not None:
            raise refusal(
                "a scheme of weights only", found=f"auto_repair of {quantize.scheme}, whose width is fixed"
            )
        budget = None if quantize.search is None else quantize.search.budget
        if budget is not None and budget.kl_mean is None:
            raise refusal(
                "a budget of kl_mean, or no auto_repair",
                found=f"auto_repair beside a budget of {budget.limits[0]}, which it would exceed",
            )
        return validation

    @field_validator("validation")
    @classmethod
    def _budget_within_gates(
        cls, validation: ValidationSettings | None, info: ValidationInfo
    ) -> ValidationSettings | None:
        """A search spends all of its budget: one above the gate makes a model that fails it."""
        quantize = info.data.get("quantize")
        budget = None if quantize is None or quantize.search is None else quantize.search.budget.kl_mean
        if validation is None or validation.auto_repair or budget is None:
            return validation
        for gate in validation.gates.all:
            if gate.metric == "kl_mean" and budget > gate.limit:
                raise refusal(
                    "a budget that the gate allows, or auto_repair",
                    found=f"the gate kl_mean {gate.expression} beside a budget of {budget:g}",
                )
        return validation

    @field_validator("checkpoint")
    @classmethod
    def _checkpoint_holds_scheme(cls, checkpoint: str, info: ValidationInfo) -> str:
        _require_exportable(checkpoint, info)
        return checkpoint

    @field_validator("compile")
    @classmethod
    def _exports_differ(cls, targets: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for index, target in enumerate(targets):
            if target in targets[:index]:
                raise refusal("each target once", found=f"{target} twice")
            if target == info.data.get("checkpoint"):
                raise refusal("formats other than the checkpoint's own", found=target)
            _require_exportable(target, info)
        return targets


def _require_exportable(target: str, info: ValidationInfo) -> None:
    quantize = info.data.get("quantize")
    if quantize is None:
        return
    if target == "native-x86" and quantize.activation is not None:
        raise refusal(
            "engines that quantize inputs as the scheme says; native-x86 does not yet",
            found=f"native-x86 for {quantize.scheme}",
            hint="leave it out: the checkpoint is served by the reference engine",
        )
    if target != "awq":
        return
    kv_cache = info.data.get("kv_cache")
    if kv_cache is not None and kv_cache.scales is not None:
        raise refusal("compressed-tensors", found="awq, which has no place for the scales of an fp8 cache")
    validation = info.data.get("validation")
    if quantize.search is not None or (validation is not None and validation.auto_repair):
        chooser = "a search" if quantize.search is not None else "auto_repair"
        raise refusal(
            "compressed-tensors, or 4 bits everywhere", found=f"awq for widths that {chooser} chooses"
        )
    widths = {quantize.bits, *(override.bits for override in quantize.overrides if override.bits)}
    if widths != {4}:
        found = ", ".join(map(str, sorted(widths - {4})))
        raise refusal("compressed-tensors, or 4 bits everywhere", found=f"awq for {found} bits")
    if quantize.type != "int" or quantize.activation is not None:
        raise refusal("compressed-tensors", found=f"awq, which does not hold {quantize.scheme}")
