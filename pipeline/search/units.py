"""The units of a search: linears that must be stored alike, because engines hold them as one weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gristmill.runtime.model_plan import LayerPlan, LinearPlan, ModelPlan, MoePlan
from gristmill.runtime.scheme import QuantScheme

__all__ = ["Unit", "Width", "model_units", "with_widths"]


@dataclass(frozen=True, slots=True)
class Width:
    """Bits of a code, and how many input columns share a scale; None leaves the linears' own group size."""

    bits: int
    group_size: int | None = None

    def of(self, scheme: QuantScheme) -> QuantScheme:
        """`scheme` at this width."""
        return replace(scheme, bits=self.bits, group_size=self.group_size or scheme.group_size)


@dataclass(frozen=True, slots=True)
class Unit:
    """Quantized linears of layer `layer`: q, k and v; o; gate and up; down; or all experts' together."""

    layer: int
    linears: tuple[LinearPlan, ...]

    @property
    def name(self) -> str:
        """The linears in one phrase, for messages."""
        return ", ".join(linear.name for linear in self.linears)


def model_units(plan: ModelPlan, schemes: Mapping[str, QuantScheme | None]) -> tuple[Unit, ...]:
    """Every unit with a linear that `schemes` quantizes, in execution order."""
    return tuple(_units(plan, schemes))


def with_widths(
    schemes: Mapping[str, QuantScheme | None], units: Sequence[Unit], widths: Sequence[Width]
) -> dict[str, QuantScheme | None]:
    """`schemes` with each unit's linears at its width; all else stays as it is."""
    changed = dict(schemes)
    for unit, width in zip(units, widths, strict=True):
        for linear in unit.linears:
            scheme = schemes[linear.name]
            assert scheme is not None  # `model_units`
            changed[linear.name] = width.of(scheme)
    return changed


def _units(plan: ModelPlan, schemes: Mapping[str, QuantScheme | None]) -> Iterator[Unit]:
    for layer in plan.layers:
        for group in _groups(layer):
            if linears := tuple(linear for linear in group if schemes.get(linear.name) is not None):
                yield Unit(layer.index, linears)


def _groups(layer: LayerPlan) -> Iterator[tuple[LinearPlan, ...]]:
    """What the kernels of engines take as one weight: linears that read one tensor, and all experts."""
    if not isinstance(layer.mlp, MoePlan):
        yield from layer.input_groups
        return
    attention, mlp = layer.attention, layer.mlp
    yield from ((attention.q, attention.k, attention.v), (attention.o,))
    yield tuple(linear for expert in mlp.experts for linear in expert.linears)
    if mlp.shared is not None:
        yield from mlp.shared.input_groups
