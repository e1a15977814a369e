"""How far apart clients' data are, by optimal transport, and how weights follow that."""

import numpy as np
from numpy.typing import ArrayLike


def transport(a: np.ndarray, b: np.ndarray, extra: np.ndarray | None = None) -> float:
    """W_2 of two samples: the root of the least mean squared distance (plus ``extra``) of moving one onto the other."""
    import ot  # with SciPy, scikit-learn and pandas: only where a distance is asked for

    cost = ot.dist(a, b)  # squared Euclidean
    return float(max(ot.emd2(ot.unif(len(a)), ot.unif(len(b)), cost if extra is None else cost + extra), 0.0)) ** 0.5


def labelled_transport(a: np.ndarray, a_labels: np.ndarray, b: np.ndarray, b_labels: np.ndarray) -> float:
    """As ``transport``, but moving (x, y) onto (x', y') costs ||x - x'||^2 + W_2^2 of the samples of class y and of y'.

    Alvarez-Melis and Fusi, "Geometric dataset distances via optimal transport" (2020), Eqs. 3 and 4 with p = 2. Labels
    are only names: a class is where its samples are, so classes of different data sets can be compared.
    """
    (a_classes, a_at), (b_classes, b_at) = (np.unique(labels, return_inverse=True) for labels in (a_labels, b_labels))
    table = [[transport(a[a_labels == c], b[b_labels == d]) ** 2 for d in b_classes] for c in a_classes]
    return transport(a, b, np.array(table)[a_at][:, b_at])


def similarity(distance: ArrayLike) -> np.ndarray:
    """1 / (1 + d) (FedAWA Eq. 5); of every client's distance to all data it makes the dataset vector."""
    return 1 / (1 + np.asarray(distance, float))


def alignment(weights: ArrayLike, vector: ArrayLike) -> np.ndarray:
    """cos(lambda, dataset vector) for each row of weights (FedAWA Fig. 7)."""
    weights, vector = np.atleast_2d(np.asarray(weights, float)), np.asarray(vector, float)
    return weights @ vector / (np.linalg.norm(weights, axis=1) * np.linalg.norm(vector))
