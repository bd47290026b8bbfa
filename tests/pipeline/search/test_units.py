"""What keeps one width in a mixture of experts, and nothing else changes with it."""

from __future__ import annotations

from gristmill.pipeline.search.units import Width, model_units, with_widths
from gristmill.runtime.architectures import plan_model
from gristmill.runtime.model_plan import ModelPlan
from gristmill.runtime.scheme import QuantScheme

W4 = QuantScheme(4, 32, symmetric=False)


def mixture() -> ModelPlan:
    """One dense layer, and one with two experts and a shared one."""
    return plan_model(
        {
            "model_type": "qwen2_moe",
            "architectures": ["Qwen2MoeForCausalLM"],
            "vocab_size": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 2,
            "mlp_only_layers": [0],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "dtype": "bfloat16",
        }
    )


def test_all_experts_are_one_unit_and_the_shared_one_is_apart() -> None:
    plan = mixture()
    units = model_units(plan, {linear.name: W4 for linear in plan.linears})
    assert [len(unit.linears) for unit in units if unit.layer == 0] == [3, 1, 2, 1]
    assert [len(unit.linears) for unit in units if unit.layer == 1] == [3, 1, 6, 2, 1]
    assert sorted(linear.name for unit in units for linear in unit.linears) == sorted(
        linear.name for linear in plan.linears
    )


def test_a_width_changes_its_unit_alone() -> None:
    plan = mixture()
    schemes = {linear.name: W4 for linear in plan.linears} | {plan.linears[0].name: None}
    units = model_units(plan, schemes)
    changed = with_widths(schemes, units[:1], [Width(8)])
    widened = {name for name, scheme in changed.items() if scheme is not None and scheme.bits == 8}
    assert widened == {linear.name for linear in units[0].linears}
    assert plan.linears[0].name not in widened
    assert changed[plan.linears[0].name] is None


def test_a_group_size_stays_unless_a_width_has_one() -> None:
    assert Width(8).of(W4) == QuantScheme(8, 32, symmetric=False)
    assert Width(5, 96).of(W4) == QuantScheme(5, 96, symmetric=False)
    assert Width(5, -1).of(W4) == QuantScheme(5, -1, symmetric=False)
