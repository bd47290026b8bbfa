"""The one exception tree of Gristmill.

    GristmillError                  exit code
    ├── CheckError                      1   a gate, proof or comparison failed
    │   ├── GateError                       a validation gate of the recipe
    │   └── IntegrityError                  bytes, digests or golden logits differ
    ├── InputError                      2   what the user handed in is wrong
    │   ├── RecipeError                     the recipe file or a --set
    │   ├── PromptError                     calibration or validation data
    │   ├── ModelError                      the source model
    │   ├── ArtifactError                   a REF, a manifest, an artifact's files
    │   ├── UnsupportedError                valid, but not something we do
    │   └── RequestError                    one request to the engine or server
    ├── OutsideError                    3   the world around us
    │   ├── StorageError                    disk full, permission, I/O
    │   ├── BusyError                       another process holds the lock
    │   └── ListenError                     an address that can't be bound
    └── InternalError                   4   a fault of ours

Any other exception that reaches the command line is a fault of ours too
(exit code 4); an interrupt exits 130. A message is one line: what, found,
expected, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "EXIT_CHECK",
    "EXIT_DONE",
    "EXIT_INPUT",
    "EXIT_INTERNAL",
    "EXIT_INTERRUPTED",
    "EXIT_OUTSIDE",
    "ArtifactError",
    "BusyError",
    "CheckError",
    "GateError",
    "GristmillError",
    "InputError",
    "IntegrityError",
    "InternalError",
    "ListenError",
    "ModelError",
    "OutsideError",
    "PromptError",
    "RecipeError",
    "RequestError",
    "StorageError",
    "UnsupportedError",
]

EXIT_DONE = 0
EXIT_CHECK = 1
EXIT_INPUT = 2
EXIT_OUTSIDE = 3
EXIT_INTERNAL = 4
EXIT_INTERRUPTED = 130


class GristmillError(Exception):
    """An error whose text a user can act on.

    `what` names the thing and its fault; `found` and `expected` are the two
    sides of a comparison; `hint` is what to do next. `details` are further
    lines, for errors that report many faults at once.
    """

    exit_code = EXIT_INTERNAL

    def __init__(
        self,
        what: str,
        *,
        found: object = None,
        expected: object = None,
        hint: str | None = None,
        details: Sequence[str] = (),
    ) -> None:
        self.what = what
        self.found = found
        self.expected = expected
        self.hint = hint
        self.details = tuple(details)
        super().__init__(self.line())

    def line(self) -> str:
        """The error as one line, without `details`."""
        parts = [self.what]
        if self.found is not None:
            parts.append(f"found {self.found}")
        if self.expected is not None:
            parts.append(f"expected {self.expected}")
        if self.hint:
            parts.append(self.hint)
        return "; ".join(" ".join(part.split()) for part in parts)


class CheckError(GristmillError):
    """A gate, proof or comparison failed."""

    exit_code = EXIT_CHECK


class GateError(CheckError):
    """A validation gate of the recipe failed."""


class IntegrityError(CheckError):
    """Bytes, digests or golden logits are not what was recorded."""


class InputError(GristmillError):
    """What the user handed in is wrong."""

    exit_code = EXIT_INPUT


class RecipeError(InputError):
    """The recipe file or a `--set` is wrong."""


class PromptError(InputError):
    """Calibration or validation data is wrong."""


class ModelError(InputError):
    """The source model is missing, damaged or incomplete."""


class ArtifactError(InputError):
    """A REF, a manifest or an artifact's file is wrong."""


class UnsupportedError(InputError):
    """Valid in itself, but not something this version does."""


class RequestError(InputError):
    """One request is wrong or can't be served now.

    `field` names its parameter and `code` its kind; `retry_after` is the number of
    seconds after which it may well succeed.
    """

    def __init__(
        self,
        what: str,
        *,
        field: str | None = None,
        code: str = "invalid_value",
        found: object = None,
        expected: object = None,
        hint: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.field = field
        self.code = code
        self.retry_after = retry_after
        super().__init__(what, found=found, expected=expected, hint=hint)


class OutsideError(GristmillError):
    """The world around us failed: network, disk, another process."""

    exit_code = EXIT_OUTSIDE


class StorageError(OutsideError):
    """The disk is full, read-only or refuses access."""


class BusyError(OutsideError):
    """Another process holds what this one needs."""


class ListenError(OutsideError):
    """The server's address can't be bound."""


class InternalError(GristmillError):
    """A fault of ours."""

    exit_code = EXIT_INTERNAL
