"""Open prompt files, plain or gzipped, and say where in them a fault lies."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Fault", "FileFault", "read_bytes", "read_lines"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in a file; `line` counts from 1, None for the file as a whole."""

    path: Path
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.reason}"


class FileFault(Exception):
    """A file that can't be read at all; carries its Fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


def read_bytes(path: Path) -> bytes:
    """The whole content, unpacked if the name ends in .gz. Raises FileFault."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError as error:
        raise FileFault(Fault(path, None, "no such file")) from error
    except IsADirectoryError as error:
        raise FileFault(Fault(path, None, "a folder, not a file")) from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise FileFault(Fault(path, None, f"damaged gzip: {error}")) from error
    except OSError as error:
        raise FileFault(Fault(path, None, f"can't be read: {error.strerror}")) from error


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers. Raises FileFault."""
    data = read_bytes(path).removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, line
