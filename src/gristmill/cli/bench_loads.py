"""From the options of `bench` to its workloads."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeVar, overload

from gristmill.runtime.errors import InputError
from gristmill.runtime.loadtest.trace import fit_rows, read_trace
from gristmill.runtime.loadtest.workload import Shape, Workload

__all__ = ["LengthOptions", "LoadOptions", "positive"]

Number = TypeVar("Number", int, float)

_LENGTHS = (128,), (128,)
_MIXED_LENGTHS = (128, 1024, 4096), (128, 512, 2048)
_CONCURRENCY = 8
_FEWEST_REQUESTS, _REQUESTS_PER_CLIENT = 16, 4
_OPEN_REQUESTS = 64


@dataclass(frozen=True, slots=True)
class LengthOptions:
    """How long requests are; None where nothing was said."""

    prompt_tokens: Sequence[str] | None = None
    output_tokens: Sequence[str] | None = None
    mixed: bool = False
    shared_prefix_tokens: int = 0

    def mixtures(self) -> list[tuple[Shape, ...]]:
        """The shapes of each load: one a load, or all of them in each. Raises InputError."""
        prompts, outputs = _MIXED_LENGTHS if self.mixed else _LENGTHS
        shapes = [
            Shape(prompt, output)
            for prompt, output in product(
                _numbers("--prompt-tokens", self.prompt_tokens, int) or prompts,
                _numbers("--output-tokens", self.output_tokens, int) or outputs,
            )
        ]
        return [tuple(shapes)] if self.mixed else [(shape,) for shape in shapes]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """When requests are sent and how many; None where nothing was said."""

    concurrency: Sequence[str] | None = None
    rate: Sequence[str] | None = None
    trace: Path | None = None
    trace_speed: float = 1.0
    trace_max_tokens: int | None = None
    requests: int | None = None
    duration: float | None = None
    repeat: int = 1
    seed: int | None = None

    def workloads(self, lengths: LengthOptions) -> list[Workload]:
        """All loads, each as often as it is repeated and each time with other prompts. Raises InputError."""
        if lengths.shared_prefix_tokens < 0:
            raise InputError(
                "--shared-prefix-tokens", found=lengths.shared_prefix_tokens, expected="0 or more"
            )
        seed = secrets.randbits(32) if self.seed is None else self.seed
        loads = [load for load in self._loads(lengths) for _ in range(positive("--repeat", self.repeat))]
        # Equal prompts in two loads would be found in the server's prefix cache.
        return [
            replace(load, seed=seed + 2 * index, shared_prefix_tokens=lengths.shared_prefix_tokens)
            for index, load in enumerate(loads)
        ]

    def _loads(self, lengths: LengthOptions) -> list[Workload]:
        clients = _numbers("--concurrency", self.concurrency, int)
        rates = _numbers("--rate", self.rate, float)
        if clients and rates:
            raise InputError("--concurrency and --rate", found="both", expected="one of them")
        bounds = Workload(
            requests=positive("--requests", self.requests), duration_s=positive("--duration", self.duration)
        )
        if self.trace is not None:
            base = [self._traced(bounds)]
        else:
            base = [replace(bounds, shapes=shapes) for shapes in lengths.mixtures()]
        if rates:
            return [_bounded(replace(one, rate=rate), _OPEN_REQUESTS) for one in base for rate in rates]
        if self.trace is not None and not clients and base[0].rows[0].seconds is not None:
            return base
        return [
            _bounded(replace(one, concurrency=number), max(_FEWEST_REQUESTS, _REQUESTS_PER_CLIENT * number))
            for one in base
            for number in clients or (_CONCURRENCY,)
        ]

    def _traced(self, bounds: Workload) -> Workload:
        assert self.trace is not None
        rows = fit_rows(
            read_trace(self.trace, self.requests),
            speed=positive("--trace-speed", self.trace_speed),
            max_tokens=positive("--trace-max-tokens", self.trace_max_tokens),
        )
        return replace(bounds, shapes=(), rows=tuple(rows), trace=self.trace.name)


@overload
def positive(option: str, value: Number) -> Number: ...
@overload
def positive(option: str, value: Number | None) -> Number | None: ...
def positive(option: str, value: Number | None) -> Number | None:
    """`value`, if it is more than 0 or not given. Raises InputError."""
    if value is not None and not 0 < value < math.inf:
        raise InputError(option, found=value, expected="more than 0")
    return value


def _bounded(workload: Workload, requests: int) -> Workload:
    """With an end, if it has none."""
    endless = workload.requests is None and workload.duration_s is None and not workload.rows
    return replace(workload, requests=requests) if endless else workload


def _numbers(option: str, texts: Sequence[str] | None, kind: Callable[[str], Number]) -> list[Number]:
    """Numbers of an option that may be repeated and may hold several, separated by commas."""
    numbers: list[Number] = []
    for text in (part for whole in texts or () for part in whole.split(",")):
        try:
            numbers.append(positive(option, kind(text)))
        except ValueError:
            raise InputError(option, found=text, expected="numbers, separated by commas") from None
    return numbers
