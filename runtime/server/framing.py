"""HTTP/1.1 by h11, without the turn of its state machine that each piece of a stream would take."""

from __future__ import annotations

import h11
from h11._writers import ChunkedWriter

__all__ = ["StreamingConnection"]


class StreamingConnection(h11.Connection):
    """h11's connection, which writes a piece of a chunked body at once.

    A chunked writer is there in the state SEND_BODY only, and in that state data leads nowhere
    else: nothing is left to check or to note. All other events go h11's way.
    """

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]
        """The bytes of an event, see `h11.Connection.send`."""
        if type(event) is h11.Data and type(self._writer) is ChunkedWriter and event.data:
            return b"%x\r\n%b\r\n" % (len(event.data), event.data)
        return super().send(event)
