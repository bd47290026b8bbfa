"""The JSON of `inspect` and `list`, key by key, and what the runtime is handed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gristmill.artifacts.artifact import Artifact, open_artifact
from gristmill.artifacts.engines import open_engine
from gristmill.artifacts.inspect import damage, inspection, listing
from gristmill.artifacts.record import BuildRecord
from gristmill.artifacts.store import Store

Commit = Callable[..., Artifact]


def test_inspection_has_exactly_the_contracts_shape(sample_folder: Path) -> None:
    artifact = open_artifact(sample_folder)
    manifest_size = (sample_folder / "manifest.json").stat().st_size
    assert json.loads(json.dumps(inspection(artifact))) == {
        "name": "sample",
        "tag": None,
        "digest": artifact.digest,
        "parent": None,
        "base_model": {"source": "package:sample_model", "revision": None, "digest": f"sha256:{'1' * 64}"},
        "schemes": {"W4A16_ASYM_G64": 2, "W8A8_CHANNEL": 1},
        "bits_per_weight": {"quantized_layers": 4.3125, "whole_model": 6.5},
        "size_bytes": {"checkpoint": 23 + 64, "engines": 3 + 128, "total": 459 + manifest_size},
        "engines": [
            {
                "target": "native-x86",
                "compute": "int8",
                "kv_cache": "bfloat16",
                "kernels": {"attention": "avx512-bf16", "linear": "avx512-vnni"},
                "golden": {
                    "prompts": 1,
                    "kl_mean": 0.0001,
                    "kl_max": 0.0004,
                    "top1_agreement": 1.0,
                    "tolerance": 0.01,
                },
            },
            {
                "target": "reference",
                "compute": "bfloat16",
                "kv_cache": "bfloat16",
                "kernels": {},
                "golden": {
                    "prompts": 1,
                    "kl_mean": 0.0,
                    "kl_max": 0.0,
                    "top1_agreement": 1.0,
                    "tolerance": 0.001,
                },
            },
        ],
        "validation": {
            "reference": {
                "perplexity": {"base": 21.5, "quantized": 23.25},
                "kl": {"mean": 0.125, "p99": 0.75},
                "top1_agreement": 0.8125,
                "tasks": {"hellaswag": {"accuracy": 0.375}},
                "calibration_overlap": 0.0,
            }
        },
        "calibration": {"digest": f"sha256:{'2' * 64}", "prompts": 64, "tokens": 32768},
        "provenance": {
            "recipe": artifact.manifest.lineage.recipe,
            "versions": {"gristmill": "0.1.0", "torch": "2.13.0"},
            "attestation": None,
            "signatures": [],
        },
    }


def test_inspection_shows_the_name_and_tag_that_were_asked_for(store: Store, commit: Commit) -> None:
    commit(store, name="renamed", tag="v2")
    shown = inspection(store.resolve("renamed:v2"))
    assert (shown["name"], shown["tag"]) == ("renamed", "v2")


def test_the_listing_has_exactly_the_contracts_keys(store: Store, commit: Commit) -> None:
    artifact = commit(store, record=BuildRecord("2026-11-29T20:30:00Z"))
    assert listing(store) == [
        {
            "name": "sample",
            "tag": "latest",
            "digest": artifact.digest,
            "size_bytes": artifact.size_bytes,
            "created": "2026-11-29T20:30:00Z",
        }
    ]


def test_damaged_artifacts_are_told_apart_from_the_listing(store: Store, commit: Commit) -> None:
    broken, sound = commit(store, b"1", "v1"), commit(store, b"2", "v2")
    (broken.folder / "recipe.yaml").unlink()
    assert [row["digest"] for row in listing(store)] == [sound.digest]
    (line,) = damage(store)
    assert "recipe.yaml: missing" in line


def test_the_reference_engine_is_the_checkpoint_with_its_golden_prompts(store: Store, commit: Commit) -> None:
    commit(store, name="renamed")
    artifact = store.resolve("renamed")
    engine = open_engine(artifact, full=True)
    assert (engine.name, engine.target, engine.digest) == ("renamed", "reference", artifact.digest)
    assert engine.path == engine.checkpoint == artifact.folder / "checkpoint"
    assert [prompt.token_ids for prompt in engine.golden] == [(1, 5, 3)]


def test_another_engine_has_a_folder_of_its_own(sample_folder: Path) -> None:
    engine = open_engine(open_artifact(sample_folder), "native-x86")
    assert engine.path == sample_folder / "engines" / "native-x86"
    assert engine.checkpoint == sample_folder / "checkpoint"
