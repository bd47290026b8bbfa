"""Factors of large symmetric matrices, in as little memory as the matrix itself and its result take."""

from __future__ import annotations

import torch

__all__ = ["cholesky_in_place", "inverse_factor"]


def cholesky_in_place(matrix: torch.Tensor) -> tuple[torch.Tensor, bool]:
    """The lower Cholesky factor of `matrix` [K, K], whose memory it takes over, and whether there is one.

    `matrix` is symmetric and its rows lie one after the other: LAPACK then
    reads it, column by column, without a copy.
    """
    columns = matrix.mT
    failed = torch.zeros((), dtype=torch.int32)
    factor, _ = torch.linalg.cholesky_ex(columns, out=(columns, failed))
    return factor, not int(failed)


def inverse_factor(matrix: torch.Tensor) -> torch.Tensor | None:
    """The upper U, float32 [K, K], with U^T U = A^-1; None if A is not positive definite.

    `matrix` is A with both axes reversed, and is overwritten; the work is done
    in its own type. Its lower Cholesky factor, reversed back, is an upper R with
    R R^T = A, and U is R's inverse. Give no other reference to it: it goes
    before the result comes.
    """
    lower, is_definite = cholesky_in_place(matrix)
    del matrix
    if not is_definite:
        return None
    inverse = torch.eye(len(lower), dtype=lower.dtype).mT
    torch.linalg.solve_triangular(lower, inverse, upper=False, out=inverse)
    del lower
    upper = torch.empty(inverse.shape)
    for row, column in zip(upper, range(len(inverse) - 1, -1, -1), strict=True):
        row.copy_(inverse[column].flip(0))
    return upper if bool(torch.isfinite(torch.stack(torch.aminmax(upper))).all()) else None
