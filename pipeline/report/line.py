"""The report line: what a build cost and what it gained, on one screen line."""

from __future__ import annotations

from gristmill.artifacts.engines import REFERENCE
from gristmill.artifacts.manifest import Manifest

__all__ = ["report_line"]


def report_line(manifest: Manifest, engine: str = REFERENCE) -> str:
    """Sizes, bits a weight and, where it was validated, what the quantization cost on `engine`."""
    checkpoint = manifest.size_of("checkpoint/")
    bits = manifest.bits_per_weight
    parts = [
        f"{manifest.base_size_bytes / 1e6:.1f} MB -> {checkpoint / 1e6:.1f} MB",
        f"{bits.quantized_layers:.2f} bits a quantized weight, {bits.whole_model:.2f} over the whole model",
    ]
    if (result := manifest.validation.get(engine)) is not None:
        base, quantized = result.perplexity.base, result.perplexity.quantized
        where = "" if engine == REFERENCE else f"on {engine} "
        parts += [
            f"{where}perplexity {base:.2f} -> {quantized:.2f} ({quantized / base - 1:+.1%})",
            f"KL {result.kl.mean:.4f} (p99 {result.kl.p99:.3f})",
            f"top-1 {result.top1_agreement:.1%}",
        ]
    return f"{manifest.name}: " + "; ".join(parts)
