"""`list`, `inspect`, `verify`: look into the store without changing it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from gristmill.artifacts.engines import open_engine
from gristmill.artifacts.inspect import damage, inspection, listing
from gristmill.artifacts.verify import require_verified
from gristmill.cli.options import JsonOption, StoreOption
from gristmill.cli.output import print_fields, print_json, print_table, say
from gristmill.facade import default_store
from gristmill.runtime.proof import prove_again
from gristmill.runtime.units import human_bytes

__all__ = ["inspect", "list_artifacts", "verify"]

RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="name, name:tag, name@sha256:... or a folder.")
]


def list_artifacts(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """List the artifacts of the store."""
    opened = default_store(store)
    rows = listing(opened)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ["NAME", "TAG", "DIGEST", "SIZE", "CREATED"],
            [
                [
                    row["name"],
                    row["tag"] or "-",
                    row["digest"][:19],
                    human_bytes(row["size_bytes"]),
                    row["created"] or "-",
                ]
                for row in rows
            ],
        )
    for fault in damage(opened):
        say(f"warning: {fault}")


def inspect(ref: RefArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show what an artifact is, how it was made and how good it is."""
    found = inspection(default_store(store).resolve(ref))
    if as_json:
        print_json(found)
    else:
        print_fields(_readable(found))


def verify(
    ref: RefArgument,
    target: Annotated[
        str | None, typer.Option("--target", metavar="T", help="Repeat the proof of this engine too.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of an artifact with its manifest, and repeat an engine's proof."""
    artifact = default_store(store).resolve(ref)
    report = require_verified(artifact)
    found: dict[str, Any] = {"digest": report.digest, "files": report.files, "size_bytes": report.size_bytes}
    proof = None if target is None else prove_again(open_engine(artifact, target))
    if proof is not None:
        found["golden"] = {"target": target, **asdict(proof)}
    if as_json:
        print_json(found)
        return
    print(f"{report.digest}: {report.files} files, {human_bytes(report.size_bytes)}, all as recorded")
    if proof is not None:
        print(
            f"{target} ({proof.compute}, KV cache {proof.kv_cache}): {proof.prompts} golden prompts, "
            f"largest KL {proof.kl_max:.2g} nats, {proof.tolerance:.2g} allowed"
        )


def _readable(found: dict[str, Any]) -> dict[str, object]:
    base, sizes, bits = found["base_model"], found["size_bytes"], found["bits_per_weight"]
    calibration = found["calibration"]
    fields: dict[str, object] = {
        "name": f"{found['name']}:{found['tag'] or '-'}",
        "digest": found["digest"],
        "parent": found["parent"] or "-",
        "base model": f"{base['source']} {base['digest'][:19]}",
        "schemes": ", ".join(f"{name} ({count} layers)" for name, count in found["schemes"].items()),
        "bits a weight": f"{bits['quantized_layers']:.2f} quantized, {bits['whole_model']:.2f} whole model",
        "size": f"{human_bytes(sizes['total'])} (checkpoint {human_bytes(sizes['checkpoint'])}, "
        f"engines {human_bytes(sizes['engines'])})",
        "engines": ", ".join(
            f"{e['target']} ({e['compute']}, KV cache {e['kv_cache']})" for e in found["engines"]
        )
        or "-",
        "calibration": f"{calibration['prompts']} prompts, {calibration['tokens']} tokens"
        if calibration
        else "-",
    }
    for engine, result in found["validation"].items():
        perplexity = result["perplexity"]
        fields[f"on {engine}"] = (
            f"perplexity {perplexity['base']:.2f} -> {perplexity['quantized']:.2f}, "
            f"KL {result['kl']['mean']:.4f} (p99 {result['kl']['p99']:.3f}), "
            f"top-1 {result['top1_agreement']:.1%}, calibration overlap {result['calibration_overlap']:.1%}"
        )
    return fields
