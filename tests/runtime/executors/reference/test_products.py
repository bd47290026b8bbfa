"""Products that are widened where there are no bfloat16 units: the same numbers, rounded at another time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from gristmill.runtime.executors.reference import products

ROWS = 96  # above the number from which products are widened


@pytest.fixture(params=["units", "no units"])
def has_units(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A processor with bfloat16 units, or one without."""
    found: bool = request.param == "units"
    monkeypatch.setattr(products, "has_bfloat16_units", lambda: found)
    return found


def _operands(rows: int, *, features: int = 160, outputs: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, features, generator=random).bfloat16()
    return x, torch.randn(outputs, features, generator=random).bfloat16()


@pytest.mark.parametrize("rows", [1, ROWS])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_the_float32_one_rounded_once(has_units: bool, rows: int, with_bias: bool) -> None:
    x, weight = _operands(rows)
    bias = torch.linspace(-3, 3, len(weight)).bfloat16() if with_bias else None
    found = products.product(x, weight, bias)
    wanted = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("rows", [1, ROWS])
def test_an_exact_product_is_not_rounded_to_bfloat16(
    has_units: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_COLUMNS_AT_ONCE", 16)  # 40 outputs: two whole parts and a shorter one
    x, weight = _operands(rows)
    found = products.exact_product(x, weight)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), x.double() @ weight.double().T, rtol=1e-3, atol=1e-3)


def test_float32_is_multiplied_as_it_is(has_units: bool) -> None:
    x, weight = (tensor.float() for tensor in _operands(ROWS))
    assert torch.equal(products.product(x, weight), F.linear(x, weight))
    assert torch.equal(products.exact_product(x, weight), F.linear(x, weight))


def test_gradients_of_a_widened_product_are_those_of_a_narrow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = []
    for has_units in (True, False):
        monkeypatch.setattr(products, "has_bfloat16_units", lambda found=has_units: found)
        x, weight = (tensor.requires_grad_() for tensor in _operands(ROWS))
        loss = products.product(x, weight).float().square().sum()
        gradients.append([gradient.float() for gradient in torch.autograd.grad(loss, [x, weight])])
    for narrow, wide in zip(*gradients, strict=True):
        assert float((narrow - wide).norm() / narrow.norm()) < 0.01


def test_rows_of_several_axes_keep_them(has_units: bool) -> None:
    x, weight = _operands(ROWS)
    found = products.product(x.view(2, ROWS // 2, -1), weight)
    assert torch.equal(found.view(ROWS, -1), products.product(x, weight))
