"""The metrics of every token, cheap enough to be counted with each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString

__all__ = ["TokenMetrics", "TokenTally"]


class TokenTally:
    """One model's tokens, and the seconds between two of an answer, by bucket; lives on the event loop."""

    __slots__ = ("_bounds", "counts", "seconds", "tokens")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0
        self.tokens = 0

    def observe_gap(self, seconds: float) -> None:
        """Count the time between two tokens of an answer."""
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds


class TokenMetrics:
    """A collector of all models' tallies: a counter of tokens and a histogram of the gaps between them.

    prometheus_client's own take a lock for each of three numbers, for threads that we don't have here.
    """

    def __init__(self, counter: str, histogram: str, label: str, bounds: Sequence[float]) -> None:
        self._counter = counter
        self._histogram = histogram
        self._label = label
        self._bounds = bounds
        self._tallies: dict[str, TokenTally] = {}

    def of(self, model: str) -> TokenTally:
        """The model's tally, which goes on when the model is loaded anew."""
        return self._tallies.setdefault(model, TokenTally(self._bounds))

    def collect(self) -> Iterator[Metric]:
        """The registry's call, at each scrape."""
        counter = CounterMetricFamily(self._counter, "Tokens generated.", labels=[self._label])
        histogram = HistogramMetricFamily(
            self._histogram, "Between two tokens of an answer.", labels=[self._label]
        )
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        for model, tally in self._tallies.items():
            counter.add_metric([model], tally.tokens)
            buckets = list(zip(names, accumulate(tally.counts), strict=True))
            histogram.add_metric([model], buckets, tally.seconds)
        yield counter
        yield histogram
