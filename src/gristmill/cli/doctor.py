"""`doctor`: what this machine offers, as the kernel grants it and as it measures."""

from __future__ import annotations

from gristmill.cli.options import JsonOption
from gristmill.cli.output import print_fields, print_json
from gristmill.runtime.doctor import MachineReport, examine
from gristmill.runtime.kernels.instruction_set import ISA_VARIABLE
from gristmill.runtime.units import human_bytes

__all__ = ["doctor"]


def doctor(as_json: JsonOption = False) -> None:
    """Show instruction sets, cores, memory and measured speeds of this machine."""
    report = examine()
    if as_json:
        print_json(report.to_dict())
    else:
        print_fields(_readable(report))


def _readable(report: MachineReport) -> dict[str, object]:
    cpus, speeds, container = report.cpus, report.speeds, report.container
    quota = "no quota" if cpus.quota is None else f"a quota of {cpus.quota:g}"
    reason = f"{ISA_VARIABLE} is set" if report.forced else "the fastest"
    limit = "" if container is None else f", container limit {human_bytes(container.limit)}"
    free = f"{human_bytes(report.free.size)} {report.free.source}"
    fields: dict[str, object] = {
        "processor": report.processor or "unknown",
        "instruction sets": ", ".join(report.instruction_sets),
        "kernels": f"{speeds.instruction_set} ({reason})",
        "cores": f"{speeds.threads} effective: {cpus.installed} installed, {cpus.allowed} allowed, {quota}",
        "memory": f"{human_bytes(report.memory)}{limit}, {free}",
        "bandwidth": f"{speeds.gigabytes:.1f} GB/s",
    }
    for name, rate in speeds.multiply_adds.items():
        fields[f"{name} arithmetic"] = f"{rate / 1e9:,.0f} billion multiply-adds/s"
    return fields
