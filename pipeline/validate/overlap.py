"""Held-out data must not have been seen in calibration: records are refused, shared text is counted."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.calibration.overlap import ngram_overlap, record_overlap
from gristmill.calibration.samples import TokenSamples
from gristmill.pipeline.validate.data import HeldOut
from gristmill.runtime.errors import PromptError

__all__ = ["refuse_shared_records", "shared_text"]


def refuse_shared_records(data: Sequence[HeldOut], calibration: TokenSamples) -> None:
    """Raise PromptError if a conversation, paragraph or row was also used for calibration."""
    faults = [
        f"{held_out.name} shares {len(shared)} of {len(held_out.samples.records)} records with calibration"
        for held_out in data
        if (shared := record_overlap(calibration, held_out.samples))
    ]
    if faults:
        raise PromptError(
            f"validation data is not held out: {faults[0]}",
            expected="records that calibration has not used",
            hint="take them out of one of the files",
            details=faults,
        )


def shared_text(data: Sequence[HeldOut], calibration: TokenSamples | None) -> tuple[float, ...]:
    """For each data set, the share of its tokens in a run of 16 that calibration has seen too."""
    seen = () if calibration is None else calibration.sequences
    return tuple(ngram_overlap(seen, held_out.windows) for held_out in data)
