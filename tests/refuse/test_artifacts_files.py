"""Artifacts whose files were damaged: every fault is found, and named by file and rule."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gristmill.artifacts.artifact import open_artifact
from gristmill.artifacts.engines import open_engine
from gristmill.artifacts.verify import require_verified, verify_artifact
from gristmill.runtime.errors import ArtifactError, IntegrityError
from gristmill.runtime.files import canonical_json

SAMPLE = Path(__file__).parent.parent / "golden" / "artifact_v1"
WEIGHTS = "checkpoint/model.safetensors"

Damage = Callable[[Path], None]


def flip_bit(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[17] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def swap_for_link(folder: Path) -> None:
    """The content behind the link is right: only its kind gives it away."""
    outside = folder.parent / "outside.bin"
    shutil.copy(folder / WEIGHTS, outside)
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(outside)


def swap_folder_for_link(folder: Path) -> None:
    (folder / "engines").rename(folder.parent / "elsewhere")
    (folder / "engines").symlink_to(folder.parent / "elsewhere")


def swap_contents(folder: Path) -> None:
    a, b = folder / "engines/native-x86/plan.json", folder / "report/report.json"
    a.write_bytes(b"[]\n")
    b.unlink()
    b.hardlink_to(a)


DAMAGES: dict[str, tuple[Damage, set[tuple[str, str]]]] = {
    "a file cut short": (lambda folder: os.truncate(folder / WEIGHTS, 63), {(WEIGHTS, "size")}),
    "a file grown": (lambda folder: os.truncate(folder / WEIGHTS, 65), {(WEIGHTS, "size")}),
    "a file emptied": (lambda folder: os.truncate(folder / WEIGHTS, 0), {(WEIGHTS, "size")}),
    "a bit flipped": (flip_bit, {(WEIGHTS, "sha256")}),
    "a file removed": (lambda folder: (folder / WEIGHTS).unlink(), {(WEIGHTS, "missing")}),
    "a file added": (
        lambda folder: (folder / "checkpoint/extra.bin").touch(),
        {("checkpoint/extra.bin", "extra")},
    ),
    "a hidden file added": (lambda folder: (folder / ".x").touch(), {(".x", "extra")}),
    "an empty folder added": (lambda folder: (folder / "exports").mkdir(), {("exports", "extra")}),
    "a file swapped for a link": (swap_for_link, {(WEIGHTS, "kind")}),
    "a folder swapped for a link": (
        swap_folder_for_link,
        {
            ("engines", "kind"),
            ("engines/native-x86/plan.json", "missing"),
            ("engines/native-x86/weights.bin", "missing"),
        },
    ),
    "a pipe added": (lambda folder: os.mkfifo(folder / "checkpoint/pipe"), {("checkpoint/pipe", "kind")}),
    "two files swapped for one": (
        swap_contents,
        {("engines/native-x86/plan.json", "sha256"), ("report/report.json", "sha256")},
    ),
}

ONLY_FOUND_BY_CONTENT = {"a bit flipped", "two files swapped for one"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "copy"))


def test_the_artifact_that_all_damage_starts_from_is_sound(copy: Path) -> None:
    report = verify_artifact(open_artifact(copy))
    assert report.passed
    assert report.files == 8


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_by_file_and_rule(damage: str, copy: Path) -> None:
    inflict, expected = DAMAGES[damage]
    inflict(copy)
    report = verify_artifact(open_artifact(copy))
    assert {(fault.path, fault.rule) for fault in report.faults} == expected


@pytest.mark.parametrize("damage", sorted(DAMAGES.keys() - ONLY_FOUND_BY_CONTENT))
def test_an_engine_of_a_damaged_artifact_is_not_opened(damage: str, copy: Path) -> None:
    DAMAGES[damage][0](copy)
    with pytest.raises(IntegrityError, match="artifact sample: "):
        open_engine(open_artifact(copy))


@pytest.mark.parametrize("damage", sorted(ONLY_FOUND_BY_CONTENT))
def test_full_verification_before_an_engine_opens_finds_changed_content(damage: str, copy: Path) -> None:
    DAMAGES[damage][0](copy)
    with pytest.raises(IntegrityError, match="sha256"):
        open_engine(open_artifact(copy), full=True)


def test_a_damaged_artifact_raises_one_line_with_all_faults_as_details(copy: Path) -> None:
    flip_bit(copy)
    (copy / "recipe.yaml").unlink()
    with pytest.raises(
        IntegrityError, match=r"sample: checkpoint/model\.safetensors: sha256 \(and 1 more\)"
    ) as e:
        require_verified(open_artifact(copy))
    assert len(e.value.details) == 2


def test_a_manifest_changed_after_it_was_opened_is_found(copy: Path) -> None:
    artifact = open_artifact(copy)
    manifest = json.loads((copy / "manifest.json").read_bytes())
    manifest["gates"][0]["value"] = 0.126
    (copy / "manifest.json").write_bytes(canonical_json(manifest))
    faults = verify_artifact(artifact).faults
    assert [(fault.path, fault.rule) for fault in faults] == [("manifest.json", "sha256")]


def test_a_folder_named_for_another_digest_is_found(copy: Path) -> None:
    stored = copy.rename(copy.with_name(f"sha256-{'0' * 64}"))
    faults = verify_artifact(open_artifact(stored)).faults
    assert [(fault.path, fault.rule) for fault in faults] == [("manifest.json", "digest")]


def test_a_folder_without_manifest_is_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"manifest\.json: missing"):
        open_artifact(tmp_path)


def test_an_engine_that_was_not_compiled_is_refused_by_name(copy: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no engine cuda; found native-x86, reference;.*compile"):
        open_engine(open_artifact(copy), "cuda")
