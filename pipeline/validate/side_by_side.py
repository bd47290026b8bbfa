"""Several models side by side: what their artifacts say of them, and tasks with the first as the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gristmill.artifacts.store import Store
from gristmill.pipeline.progress import Progress
from gristmill.pipeline.stages import StageCache
from gristmill.pipeline.validate.differences import Difference
from gristmill.pipeline.validate.subject import Subject
from gristmill.pipeline.validate.tasks.outcome import TaskRows, run_tasks
from gristmill.pipeline.validate.tasks.task import TaskResult, difference
from gristmill.runtime.errors import InputError

__all__ = ["Column", "compare_subjects"]


@dataclass(frozen=True, slots=True)
class Column:
    """One model: its tasks, and how each differs from the first model's (None for that itself)."""

    subject: Subject
    tasks: tuple[TaskResult, ...]
    differences: tuple[Difference | None, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values; what is not known of a model is None."""
        tasks = {
            result.task: {
                "metric": result.metric,
                "items": len(result.items),
                "values": result.means,
                "difference": None if change is None else asdict(change),
            }
            for result, change in zip(self.tasks, self.differences, strict=True)
        }
        return {"name": self.subject.name, **_recorded(self.subject), "tasks": tasks}


def compare_subjects(
    subjects: Sequence[Subject], tasks: Sequence[TaskRows], store: Store, progress: Progress
) -> tuple[Column, ...]:
    """A column for each subject, in their order; one is in memory at a time.

    Raises InputError for less than two, and where there is nothing to compare.
    """
    if len(subjects) < 2:
        raise InputError("compare", found=f"{len(subjects)} model", expected="two or more")
    unknown = [subject.name for subject in subjects if subject.artifact is None]
    if unknown and not tasks:
        raise InputError(
            "nothing to compare by", found=f"{unknown[0]} is no artifact", hint="name --tasks or --text"
        )
    stages = StageCache(store.layout.stages)
    results: list[list[TaskResult]] = []
    for subject in subjects:
        progress.note(subject.name)
        results.append(run_tasks(subject.open, tasks, stages, progress) if tasks else [])
    return tuple(
        Column(
            subject,
            tuple(own),
            tuple(None if index == 0 else difference(*pair) for pair in zip(results[0], own, strict=True)),
        )
        for index, (subject, own) in enumerate(zip(subjects, results, strict=True))
    )


def _recorded(subject: Subject) -> dict[str, Any]:
    """What the manifest of an artifact says, on the engine that is compared."""
    if subject.artifact is None or subject.engine is None:
        return dict.fromkeys(("size_bytes", "bits_per_weight", "perplexity", "kl", "top1_agreement"))
    manifest = subject.artifact.manifest
    validation = manifest.validation.get(subject.engine.target)
    return {
        "size_bytes": manifest.size_of("checkpoint/"),
        "bits_per_weight": manifest.bits_per_weight.whole_model,
        "perplexity": None if validation is None else asdict(validation.perplexity),
        "kl": None if validation is None else asdict(validation.kl),
        "top1_agreement": None if validation is None else validation.top1_agreement,
    }
