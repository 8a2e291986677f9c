"""Simpler laws of scaling, to be beaten or tied with on the same points: throughput over nodes.

    constant     as efficient as the largest measured number of nodes
    Amdahl       T(N) = T1 (s + (1-s)/N), as throughput under weak scaling: N / (1 + k (N-1))
    USL          N / (1 + k (N-1) + l N (N-1))
    PMNF         T(N) = T1 (1 + a log2 N + b N), two terms, not negative

Each is fitted by relative errors of throughput. Not physics: none of them answers what another link would do.
"""

from collections.abc import Callable, Mapping

import numpy as np

Law = Callable[[int], float]


def laws(points: Mapping[int, float]) -> dict[str, Law]:
    """Those that the points can fit: one number needs two points, two need three."""
    one = points[1]
    largest = max(points)
    efficiency = points[largest] / largest / one
    found: dict[str, Law] = {"constant efficiency": lambda nodes: one if nodes == 1 else one * nodes * efficiency}
    found["Amdahl"] = _law(points, lambda n: [n - 1])
    if len(points) > 2:
        found["USL"] = _law(points, lambda n: [n - 1, n * (n - 1)])
        found["PMNF"] = _law(points, lambda n: [float(np.log2(n)), n - 1])
    return found


def _law(points: Mapping[int, float], terms: Callable[[int], list[float]]) -> Law:
    """Throughput N X1 / (1 + sum of terms), coefficients not negative."""
    from scipy.optimize import nnls

    others = [nodes for nodes in points if nodes > 1]
    # relative: N X1 / X - 1 = sum, weighted by X / (N X1)
    weights = np.array([points[nodes] / (nodes * points[1]) for nodes in others])
    left = np.array([terms(nodes) for nodes in others]) * weights[:, None]
    factors, _ = nnls(left, 1 - weights)
    return lambda nodes: nodes * points[1] / (1 + float(np.dot(factors, terms(nodes))))
