"""Stop strings in a stream of text: found wherever the pieces are cut, and never shown in part."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopStrings"]


class _Matcher:
    """Knuth-Morris-Pratt search for one stop string, a character at a time.

    `matched` is the length of the longest start of the stop string that the
    text ends with.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._fallback = [0]
        for character in stop[1:]:
            self._fallback.append(self._longer(self._fallback[-1], character))

    def advance(self, character: str) -> bool:
        """Add a character; True when the text now ends with the stop string."""
        if self.matched == len(self.stop):
            self.matched = self._fallback[-1]
        self.matched = self._longer(self.matched, character)
        return self.matched == len(self.stop)

    @property
    def num_open(self) -> int:
        """How many last characters may still become the stop string."""
        return self._fallback[-1] if self.matched == len(self.stop) else self.matched

    def _longer(self, matched: int, character: str) -> int:
        while matched and self.stop[matched] != character:
            matched = self._fallback[matched - 1]
        return matched + (self.stop[matched] == character)


class StopStrings:
    """Passes text on, holding back any end of it that may still become a stop string.

    The result does not depend on how the text is cut: the stop that ends first
    wins, of those that end together the longest. After a stop, `matched` is
    the string, and nothing more may be fed.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in sorted(stops, key=len, reverse=True)]
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, armed: bool = True) -> str:
        """The text that is now safe to show. Stops that end in text fed with `armed` False are ignored."""
        if not self._matchers:
            return text
        buffer = self._held + text
        for end in range(len(self._held), len(buffer)):
            complete = [matcher.stop for matcher in self._matchers if matcher.advance(buffer[end])]
            if complete and armed:
                self.matched = complete[0]
                self._held = ""
                return buffer[: end + 1 if self._include else end + 1 - len(complete[0])]
        num_open = max(matcher.num_open for matcher in self._matchers)
        self._held = buffer[len(buffer) - num_open :]
        return buffer[: len(buffer) - num_open]

    def flush(self) -> str:
        """What is held back, once no more text can follow."""
        held, self._held = self._held, ""
        return held
