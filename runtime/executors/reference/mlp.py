"""The second half of a decoder block: one gated MLP, or a mixture of them between which a router chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from gristmill.runtime.executors.reference.linears import UNQUANTIZED, Observe, Schemes, Weights, linear
from gristmill.runtime.model_plan import MlpPlan, MoePlan

__all__ = ["gated_input", "mlp_output", "route"]

_ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def mlp_output(
    plan: MlpPlan | MoePlan,
    weights: Weights,
    x: torch.Tensor,
    observe: Observe | None = None,
    schemes: Schemes = UNQUANTIZED,
) -> torch.Tensor:
    """What the MLP, or the experts, add to the residual stream for normed `x` [..., hidden]."""
    if isinstance(plan, MoePlan):
        if observe is not None:
            observe(plan.readers, x)
        return _mixture(plan, weights, x.flatten(0, -2), schemes).view_as(x)
    if observe is not None:
        observe((plan.gate, plan.up), x)
    gated = gated_input(plan, weights, x, schemes)
    if observe is not None:
        observe((plan.down,), gated)
    return linear(plan.down, weights, gated, schemes)


def gated_input(
    plan: MlpPlan, weights: Weights, x: torch.Tensor, schemes: Schemes = UNQUANTIZED
) -> torch.Tensor:
    """What the down projection reads: `activation(gate(x)) * up(x)`."""
    gate = _ACTIVATIONS[plan.activation](linear(plan.gate, weights, x, schemes))
    return gate * linear(plan.up, weights, x, schemes)


def route(plan: MoePlan, weights: Weights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token of `x` [T, hidden], and how much each counts; both [T, top_k].

    Logits and softmax are float32 whatever the dtype of `x`: a rounded logit
    could send a token elsewhere. Of experts that count the same the first is chosen.
    """
    logits = F.linear(x.float(), weights[plan.router.weight].float())
    ranked = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    shares, experts = ranked.values[:, : plan.top_k], ranked.indices[:, : plan.top_k]
    if plan.normalize_top_k:
        shares = shares / shares.sum(dim=-1, keepdim=True)
    return experts, shares


def _mixture(plan: MoePlan, weights: Weights, x: torch.Tensor, schemes: Schemes) -> torch.Tensor:
    """The experts of each token of `x` [T, hidden], weighted and summed in float32, in their order."""
    experts, shares = route(plan, weights, x)
    total = torch.zeros(x.shape, dtype=torch.float32)
    for index, expert in enumerate(plan.experts):
        tokens, place = (experts == index).nonzero(as_tuple=True)
        output = mlp_output(expert, weights, x[tokens], schemes=schemes)
        total.index_add_(0, tokens, output.float() * shares[tokens, place, None])
    if plan.shared is not None:
        output = mlp_output(plan.shared, weights, x, schemes=schemes).float()
        if plan.shared_gate is not None:
            gate = F.linear(x.float(), weights[plan.shared_gate.weight].float())
            output = output * gate.sigmoid()
        total = total + output
    return total.to(x.dtype)
