"""Largest eigenvalues of the Gram matrices from which smoothness constants are made."""

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

EXACT_UP_TO = 4096  # order of a matrix that the dense symmetric solver takes


def require_moderate(owner: str, rows: Any) -> None:
    """Data whose products, squared again by L_i^2, stay in the range of float64; rows: (m, d). Raises ValueError."""
    held = rows.data if scipy.sparse.issparse(rows) else rows
    largest = float(np.abs(held).max(initial=0.0))
    allowed = (np.finfo(np.float64).max / max(rows.shape) ** 4) ** 0.25
    if largest > allowed:
        column = int(abs(rows).max(axis=0).argmax()) + 1
        raise ValueError(
            f"{owner}: feature {column} (counted from 1) holds a value of magnitude {largest:.3g}; the smoothness "
            f"constants need its fourth power, which float64 holds up to {allowed:.1g} here; rescale the features, for "
            "example divide each by its largest magnitude."
        )


def largest_eigenvalue(rows: Any, divisor: float = 1.0) -> tuple[float, str]:
    """lambda_max(rows' rows) / divisor and how it was found; rows: (m, d) array or CSR, in float64.

    The smaller of rows' rows and rows rows' is formed; its largest eigenvalue is exact (symmetric solver). Beyond
    EXACT_UP_TO it is bounded from above by sqrt(|G|_1 |G|_inf) = |G|_1, a certificate, if a loose one.
    """
    m, d = rows.shape
    gram = rows.T @ rows if d <= m else rows @ rows.T
    size = min(m, d)
    if size <= EXACT_UP_TO:
        dense = gram.toarray() if scipy.sparse.issparse(gram) else np.asarray(gram)
        top = scipy.linalg.eigh(dense, eigvals_only=True, subset_by_index=[size - 1, size - 1])[0]
        return float(max(top, 0.0)) / divisor, "exact: symmetric eigenvalue"
    return float(abs(gram).sum(axis=0).max()) / divisor, f"bound: largest absolute column sum, order {size}"
