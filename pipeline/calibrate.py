"""The calibrate stage: from prompt files to the token samples that the model will read."""

from __future__ import annotations

from gristmill.calibration.prompts import PromptSettings, PromptSource, load_calibration
from gristmill.calibration.samples import TokenSamples, load_samples, save_samples
from gristmill.pipeline.model import BuildModel
from gristmill.pipeline.stages import StageCache, code_version, stage_key
from gristmill.recipes.schema import CalibrationSettings
from gristmill.runtime.files import sha256_file

__all__ = ["calibrate"]

_FILE = "samples.safetensors"
_CODE = (
    "gristmill.calibration",
    "gristmill.runtime.chat_form",
    "gristmill.runtime.chat_messages",
    "gristmill.runtime.chat_template",
    "gristmill.runtime.token_bytes",
    "gristmill.runtime.tokenizer",
)


def calibrate(
    settings: CalibrationSettings, model: BuildModel, digest: str, stages: StageCache
) -> TokenSamples:
    """The recipe's token samples, made now or by an earlier build of the same prompts and model.

    `digest` is the source model's. Raises PromptError listing every fault of every prompt file.
    """
    inputs = {
        "model": digest,
        "prompts": [
            {"sha256": sha256_file(prompt.path), "name": prompt.path.name, "kind": prompt.kind}
            for prompt in settings.prompts
        ],
        "shares": settings.shares,
        "samples": settings.samples,
        "max_tokens": settings.max_tokens,
        "seed": settings.seed,
        "pack": settings.pack,
    }
    key = stage_key("calibrate", inputs, code_version(_CODE))
    if (done := stages.finished("calibrate", key)) is not None:
        return load_samples(done / _FILE)
    samples = load_calibration(_prompt_settings(settings), model.tokenizer)
    with stages.open("calibrate", key) as stage:
        save_samples(stage.folder / _FILE, samples)
        stage.finish()
    return samples


def _prompt_settings(settings: CalibrationSettings) -> PromptSettings:
    sources = zip(settings.prompts, settings.shares, strict=True)
    return PromptSettings(
        sources=tuple(PromptSource(prompt.path, share, prompt.kind) for prompt, share in sources),
        samples=settings.samples,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        pack=settings.pack,
    )
