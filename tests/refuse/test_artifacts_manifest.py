"""Manifests that a reader must refuse, each with the file and the rule named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gristmill.artifacts.manifest_bytes import MAX_MANIFEST_BYTES, parse_manifest, read_manifest
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.files import canonical_json

SAMPLE = Path(__file__).parent.parent / "golden" / "artifact_v1" / "manifest.json"
GOOD = SAMPLE.read_bytes()

ENTRY = {"size": 1, "sha256": "0" * 64}


def put(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """A fault: the value at the place of `keys` is replaced or added."""

    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """A fault: the key at the end of `keys` is removed."""

    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a later schema version": (put("schema_version", value=2), "schema_version; found 2; expected 1"),
    "a version that is true": (put("schema_version", value=True), "schema_version; found True"),
    "no schema version": (drop("schema_version"), "schema_version; found None"),
    "an unknown key": (put("mood", value="fine"), "mood: Unexpected"),
    "an unknown key inside": (put("lineage", "base_model", "licence", value="x"), "licence: Unexpected"),
    "a missing key": (drop("skipped"), "skipped: Field required"),
    "a size as text": (put("files", "recipe.yaml", "size", value="41"), r"recipe\.yaml\.size: .*integer"),
    "a negative size": (put("files", "recipe.yaml", "size", value=-1), "greater than or equal to 0"),
    "a size beyond 63 bits": (put("files", "recipe.yaml", "size", value=2**63), "less than or equal"),
    "a hash that is too short": (put("files", "recipe.yaml", "sha256", value="ab"), "sha256: .*pattern"),
    "a hash in capitals": (put("files", "recipe.yaml", "sha256", value="A" * 64), "sha256: .*pattern"),
    "an absolute path": (put("files", "/etc/passwd", value=ENTRY), "an absolute path"),
    "a path that climbs": (put("files", "checkpoint/../../x", value=ENTRY), "climbs out of the artifact"),
    "a path with an empty part": (put("files", "checkpoint//x", value=ENTRY), "a path whose parts"),
    "a hidden file": (put("files", "checkpoint/.x", value=ENTRY), "a path whose parts"),
    "a backslash": (put("files", "checkpoint\\x", value=ENTRY), "a path whose parts"),
    "a line break in a path": (put("files", "checkpoint/x\n", value=ENTRY), "a path whose parts"),
    "a path without end": (put("files", "checkpoint/" + "x" * 600, value=ENTRY), "over 512 characters"),
    "a path without bottom": (put("files", "checkpoint" + "/x" * 20, value=ENTRY), "16 levels"),
    "a file in no known place": (put("files", "notes.txt", value=ENTRY), r"notes\.txt: not in one of"),
    "the manifest in itself": (put("files", "manifest.json", value=ENTRY), r"manifest\.json: not in one of"),
    "no recipe": (drop("files", "recipe.yaml"), r"recipe\.yaml: missing"),
    "no model configuration": (drop("files", "checkpoint/config.json"), "config.json: missing"),
    "another recipe's digest": (put("lineage", "recipe", value=f"sha256:{'3' * 64}"), "lineage.recipe: not"),
    "a parent that is no digest": (put("lineage", "parent", value="latest"), "lineage.parent: .*pattern"),
    "a name with capitals": (put("name", value="Sample"), "name: .*pattern"),
    "a name with a line break": (put("name", value="sample\n"), "name: .*pattern"),
    "a share above one": (put("validation", "reference", "top1_agreement", value=1.5), "less than or equal"),
    "a scheme with 9 bits": (put("schemes", 0, "scheme", "bits", value=9), "quantization width"),
    "a scheme with a text for a truth": (
        put("schemes", 0, "scheme", "symmetric", value="false"),
        "symmetric: .*boolean",
    ),
    "an unknown key in a scheme": (put("schemes", 0, "scheme", "mood", value=1), "mood: Unexpected"),
    "a scheme without an optional key": (drop("schemes", 0, "scheme", "type"), "not in canonical form"),
    "a scheme under a wrong name": (put("schemes", 0, "name", value="W3"), "schemes: not grouped"),
    "an empty group of linears": (put("schemes", 0, "linears", value=[]), "schemes: not grouped"),
    "a linear listed twice": (
        put("schemes", 0, "linears", value=["model.layers.0.self_attn.q_proj"]),
        "a linear is listed twice",
    ),
    "a linear both quantized and skipped": (
        put("skipped", value=["model.layers.0.mlp.up_proj"]),
        "is quantized too",
    ),
    "skipped linears out of order": (put("skipped", value=["b", "a"]), "skipped: not sorted"),
    "engines out of order": (lambda manifest: manifest["engines"].reverse(), "engines: not sorted"),
    "an engine without files": (
        lambda manifest: manifest["engines"].insert(0, manifest["engines"][0] | {"target": "cuda"}),
        r"\['cuda', 'native-x86'\] listed",
    ),
    "files of an engine that is not listed": (
        lambda manifest: manifest["engines"].pop(0),
        r"engines: files of \['native-x86'\] are stored",
    ),
    "a proof without golden prompts": (drop("files", "golden/prompts.json"), "golden/prompts.json: missing"),
    "results of an engine that is not there": (
        put("gates", 0, "engine", value="cuda"),
        "cuda is not one of the engines",
    ),
    "layer errors out of order": (
        lambda manifest: manifest["layer_errors"].reverse(),
        "layer_errors: not sorted",
    ),
    "no threads": (put("determinism", "threads", value=0), "greater than or equal to 1"),
}

BROKEN_BYTES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not JSON"),
    "half a file": (GOOD[: len(GOOD) // 2], "not JSON"),
    "not UTF-8": (GOOD.replace(b'"sample"', b'"\xff\xfe"'), "not JSON"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "not JSON"),
    "brackets without end": (b"[" * 100_000, "not JSON"),
    "a number without end": (b'{"schema_version":' + b"1" * 5000 + b"}", "not JSON"),
    "a list": (b"[1]\n", "not a JSON object"),
    "a key written twice": (
        GOOD.replace(b'"name":"sample"', b'"name":"sample","name":"sample"'),
        "duplicate key; found 'name'",
    ),
    "NaN": (GOOD.replace(b"4.3125", b"NaN"), "number; found NaN; expected a finite number"),
    "infinity": (GOOD.replace(b"4.3125", b"-Infinity"), "number; found -Infinity"),
    "infinity as a large number": (GOOD.replace(b"4.3125", b"1e999"), "finite number"),
    "half a surrogate pair": (GOOD.replace(b'"sample"', b'"\\ud800"'), "hex escape"),
    "spaces": (json.dumps(json.loads(GOOD), sort_keys=True).encode() + b"\n", "not in canonical form"),
    "keys out of order": (
        json.dumps(dict(reversed(json.loads(GOOD).items())), separators=(",", ":")).encode() + b"\n",
        "not in canonical form",
    ),
    "no final newline": (GOOD[:-1], "not in canonical form"),
    "a longer number": (GOOD.replace(b"4.3125", b"4.31250"), "not in canonical form"),
    "an integer for a float": (GOOD.replace(b'"kl_max":0.0,', b'"kl_max":0,'), "not in canonical form"),
    "an escape where none is needed": (GOOD.replace(b'"sample"', b'"s\\u0061mple"'), "not in canonical form"),
}


def test_the_manifest_that_all_faults_start_from_is_accepted() -> None:
    assert parse_manifest(canonical_json(json.loads(GOOD))).name == "sample"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_value_is_refused_by_name(fault: str) -> None:
    change, message = FAULTS[fault]
    manifest = json.loads(GOOD)
    change(manifest)
    with pytest.raises(ArtifactError, match=rf"^here/manifest\.json: .*{message}"):
        parse_manifest(canonical_json(manifest), "here/manifest.json")


@pytest.mark.parametrize("fault", BROKEN_BYTES)
def test_wrong_bytes_are_refused_by_name(fault: str) -> None:
    data, message = BROKEN_BYTES[fault]
    with pytest.raises(ArtifactError, match=rf"^here/manifest\.json: .*{message}"):
        parse_manifest(data, "here/manifest.json")


def test_all_faults_are_reported_at_once() -> None:
    manifest = json.loads(GOOD) | {"name": "", "skipped": 3, "mood": "fine"}
    with pytest.raises(ArtifactError, match="and 2 more") as caught:
        parse_manifest(canonical_json(manifest))
    assert len(caught.value.details) == 3


def test_a_manifest_over_the_size_limit_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(MAX_MANIFEST_BYTES + 1)
    with pytest.raises(ArtifactError, match=r"manifest\.json: size"):
        read_manifest(tmp_path)


def test_a_manifest_behind_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").symlink_to(SAMPLE)
    with pytest.raises(ArtifactError, match=r"manifest\.json: not a regular file"):
        read_manifest(tmp_path)
