"""manifest.json: bytes that never change, and a round trip for any content."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.artifacts.manifest import (
    BitsPerWeight,
    Calibration,
    Determinism,
    Engine,
    EngineValidation,
    FileEntry,
    GateResult,
    GoldenProof,
    KlDivergence,
    LayerError,
    Lineage,
    Manifest,
    Perplexity,
    SourceModel,
    group_schemes,
)
from gristmill.artifacts.manifest_bytes import manifest_bytes, parse_manifest, read_manifest
from gristmill.artifacts.names import digest_of
from gristmill.runtime.errors import ArtifactError
from gristmill.runtime.scheme import ActivationScheme, QuantScheme

SAMPLE_DIGEST = "sha256:8a76b60a251e6757b2532f93615572e3dc1a00e14fdf42396b153defe52bb3c7"

counts = st.integers(0, 2**63 - 1)
measures = st.floats(0, 1e300)
shares = st.floats(0, 1)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
hexes = st.binary(min_size=32, max_size=32).map(bytes.hex)
digests = hexes.map(lambda text: f"sha256:{text}")
segments = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._+@=-]{0,9}", fullmatch=True)
entries = st.builds(FileEntry, counts, hexes)
activations = st.builds(
    ActivationScheme,
    st.sampled_from(["int", "float"]),
    st.integers(4, 8),
    st.sampled_from(["token", "group"]),
    st.just(True),
    st.booleans(),
)
static_activations = st.builds(
    ActivationScheme, st.sampled_from(["int", "float"]), st.just(8), st.just("tensor"), st.just(False)
)
group_sizes = st.sampled_from([-1, 32, 64, 128])
scale_dtypes = st.sampled_from(["bfloat16", "float16", "float32"])
schemes = st.builds(
    QuantScheme,
    st.integers(2, 8),
    group_sizes,
    st.booleans(),
    st.just("int"),
    scale_dtypes,
    st.none() | activations | static_activations,
) | st.builds(
    QuantScheme,
    st.just(8),
    group_sizes,
    st.just(True),
    st.just("float"),
    scale_dtypes,
    st.none() | activations | static_activations,
)
validations = st.builds(
    EngineValidation,
    st.builds(Perplexity, measures, measures),
    st.builds(KlDivergence, measures, measures),
    shares,
    st.dictionaries(
        words, st.dictionaries(words, st.floats(allow_nan=False, allow_infinity=False), max_size=2)
    ),
    shares,
)
proofs = st.builds(GoldenProof, counts, measures, measures, shares, measures)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    files = draw(
        st.dictionaries(st.builds("checkpoint/{}/{}".format, segments, segments), entries, max_size=4)
    )
    needed = ("recipe.yaml", "checkpoint/config.json", "golden/prompts.json")
    files |= {path: draw(entries) for path in needed}
    targets = sorted(draw(st.sets(st.sampled_from(["native-x86", "cuda", "reference"]))))
    files |= {f"engines/{target}/plan.json": draw(entries) for target in targets if target != "reference"}
    lineage = Lineage(
        draw(st.builds(SourceModel, words, st.none() | words, digests)),
        draw(st.none() | digests),
        f"sha256:{files['recipe.yaml'].sha256}",
        draw(st.none() | st.builds(Calibration, digests, counts, counts)),
    )
    errors = draw(st.lists(st.builds(LayerError, words, measures), max_size=4))
    quantized = draw(st.dictionaries(words, schemes, max_size=6))
    skipped = draw(st.sets(words, max_size=3)) - quantized.keys()
    engines = [
        Engine(target, draw(words), draw(words), {draw(words): draw(words)}, draw(st.none() | proofs))
        for target in targets
    ]
    gates = st.builds(GateResult, st.sampled_from(targets), words, words, st.floats(-1e9, 1e9), st.booleans())
    return Manifest(
        schema_version=1,
        name=draw(st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,9}[a-z0-9])?", fullmatch=True)),
        files=files,
        lineage=lineage,
        schemes=group_schemes(quantized),
        skipped=tuple(sorted(skipped)),
        bits_per_weight=BitsPerWeight(draw(measures), draw(measures)),
        base_size_bytes=draw(counts),
        engines=tuple(engines),
        validation={target: draw(validations) for target in targets},
        gates=tuple(draw(st.lists(gates, max_size=3))) if targets else (),
        determinism=Determinism(draw(st.integers(1, 512)), draw(words), draw(st.dictionaries(words, words))),
        layer_errors=tuple(sorted(errors, key=lambda layer: (-layer.error, layer.linear))),
    )


def test_the_sample_artifact_keeps_its_bytes_and_digest(sample_folder: Path) -> None:
    manifest, data = read_manifest(sample_folder)
    assert manifest_bytes(manifest) == data
    assert digest_of(data) == SAMPLE_DIGEST


@settings(max_examples=60)
@given(manifests())
def test_any_manifest_survives_the_round_trip(manifest: Manifest) -> None:
    data = manifest_bytes(manifest)
    assert parse_manifest(data) == manifest
    assert manifest_bytes(parse_manifest(data)) == data


def test_equal_manifests_have_equal_bytes_however_they_were_made(sample_folder: Path) -> None:
    manifest, data = read_manifest(sample_folder)
    backwards = dict(reversed(list(manifest.files.items())))
    whole = replace(manifest.bits_per_weight, whole_model=7)
    assert manifest_bytes(replace(manifest, files=backwards)) == data
    assert manifest_bytes(replace(manifest, bits_per_weight=whole)) == data.replace(b"6.5}", b"7.0}")


def test_a_measure_that_is_not_finite_is_never_written(sample_folder: Path) -> None:
    manifest, _ = read_manifest(sample_folder)
    broken = replace(manifest, bits_per_weight=BitsPerWeight(4.0, float("nan")))
    with pytest.raises(ArtifactError, match=r"manifest\.json: number"):
        manifest_bytes(broken)


def test_schemes_are_grouped_once_each_and_given_back_by_linear() -> None:
    four, eight = QuantScheme(4, 64, False), QuantScheme(8, -1, True)
    by_linear = {"b": four, "c": eight, "a": four}
    groups = group_schemes(by_linear)
    assert [(group.name, group.linears) for group in groups] == [
        ("W4A16_ASYM_G64", ("a", "b")),
        ("W8A16_CHANNEL", ("c",)),
    ]


def test_schemes_that_differ_only_in_what_their_name_omits_stay_apart() -> None:
    wide = QuantScheme(4, 64, False, scale_dtype="float32")
    narrow = QuantScheme(4, 64, False)
    assert [group.linears for group in group_schemes({"a": wide, "b": narrow})] == [("b",), ("a",)]
