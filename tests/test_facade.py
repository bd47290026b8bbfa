"""The Python interface, as the README shows it."""

from __future__ import annotations

import gristmill


def test_an_artifact_is_built_and_used_from_python(tmp_path, tiny_llama) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: tiny\nmodel: {tiny_llama}\nquantize: {{scheme: W4A16, method: rtn, group_size: 32}}\n"
    )
    artifact = gristmill.build(recipe, overrides=["name=mine"], store=tmp_path / "store")
    params = gristmill.SamplingParams(max_tokens=5, temperature=0)
    with gristmill.LLM("mine", store=tmp_path / "store") as llm:
        (output,) = llm.generate("Once upon a time", params)
        (chat,) = llm.chat([{"role": "user", "content": "Hello"}], params)
    assert artifact.ref.startswith("mine:latest@sha256:")
    assert 0 < len(output.outputs[0].token_ids) <= 5
    assert 0 < len(chat.outputs[0].token_ids) <= 5
