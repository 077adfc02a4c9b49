"""The limits of shares and rankings, and quantiles of the beta distribution and of Student's t, without SciPy.

The angle arcsin(sqrt(x)) of a share x of the beta distribution has the density sin ** (2a - 1) * cos ** (2b - 1), which
is smooth and nearly normal: Gauss and Legendre's quadrature integrates it.
"""

import math
from bisect import bisect_left
from typing import Any, NamedTuple

import numpy as np

Z = 1.96  # of 95%
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_NEAR = 1e-8  # a step of Newton, after which the error is its square
_REACH = 12  # standard deviations of the angle, beyond which its density is 0
_TINY = 1e-300
_POISSON = (0, 0.051293, 0.355362, 0.817691)
_LARGE = 1e8  # degrees of freedom, where t is normal but for 2e-8


def beta_quantile(probability: float, a: Any, b: Any) -> np.ndarray:
    """Of arrays or numbers; a: 1/2, or at least 1; b: at least 1/2."""
    found: np.ndarray = np.sin(_angle_quantile(probability, a, b)) ** 2
    return found


def t_quantile(freedom: Any, probability: float = 0.975) -> np.ndarray:
    """Student's t of arrays or numbers from 1 degree of freedom on, at a probability above 0.5."""
    bounded = np.minimum(freedom, _LARGE)
    quantile: np.ndarray = np.sqrt(bounded) * np.tan(_angle_quantile(2 * probability - 1, 0.5, bounded / 2))
    return quantile


def two_sided_p(t: float, freedom: float) -> float:
    """The probability that Student's t is at least as far from 0."""
    shares = [_integral(end, 0.5, freedom / 2) for end in (np.arctan(abs(t) / math.sqrt(freedom)), np.pi / 2)]
    return 1 - float(shares[0] / shares[1])


def clopper_pearson(hits: Any, number: Any, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """The exact limits of shares (Clopper and Pearson, 1934): on each side, at most `tail` of the samples miss a share.

    Arrays or numbers, which may be fractions (Korn and Graubard, 1998); below one hit the lower limit is 0.
    """
    missed = number - hits
    low = beta_quantile(tail, np.maximum(hits, 1), missed + 1)
    high = beta_quantile(1 - tail, hits + 1, np.maximum(missed, 1))
    return np.where(hits < 1, 0.0, low), np.where(missed < 1, 1.0, high)


def share_by_limit(goal: float, number: int) -> float:
    """The least share of so many samples whose one-sided 95% limit of Clopper and Pearson reaches a goal; above 1 if
    none does."""

    def reaches(hits: int) -> bool:
        return bool(clopper_pearson(hits, number, 0.05)[0] >= goal)

    return bisect_left(range(number + 1), True, key=reaches) / max(number, 1)


def wilson(shares: Any, n: Any) -> tuple[Any, Any]:
    """The limits of shares of n samples each (Wilson, 1927); arrays or numbers. With up to three hits or misses a limit
    is at least as near to 0 or 1 as Poisson's one-sided one (Brown, Cai and DasGupta, 2001): so of any n, each share is
    inside in at least 92.5% of the samples."""
    middle = (shares + Z**2 / (2 * n)) / (1 + Z**2 / n)
    width = Z * np.sqrt(shares * (1 - shares) / n + Z**2 / (4 * n**2)) / (1 + Z**2 / n)
    low = np.maximum(np.minimum(middle - width, _least(shares * n) / n), 0)  # rounded, the one of no hit is below
    high = np.maximum(middle + width, 1 - _least((1 - shares) * n) / n)
    return low, high


def _least(hits: Any) -> Any:
    """The expected number of which 5% of the samples have so many hits or more; infinite above 3."""
    return np.interp(np.round(hits, 6), (0, 1, 2, 3), _POISSON, right=np.inf)


def newcombe(areas: np.ndarray, own: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The limits of AUROCs (C,) of so many samples of a class and of the others (Newcombe, 2006, method 5).

    They are the areas from which the observed one is 1.96 standard errors away, by Hanley and McNeil (1982) with equal
    numbers.
    """
    half = (own + others) / 2 - 1
    limits = []
    for end in (0.0, 1.0):
        inside = areas
        outside = np.full(areas.shape, end)
        for _ in range(50):
            middle = (inside + outside) / 2
            factor = 1 + half * ((1 - middle) / (2 - middle) + middle / (1 + middle))
            error = np.sqrt(middle * (1 - middle) * factor / (own * others))
            is_near = np.abs(areas - middle) < Z * error
            inside = np.where(is_near, middle, inside)
            outside = np.where(is_near, outside, middle)
        limits.append(outside)
    return limits[0], limits[1]


class Difference(NamedTuple):
    """of_seeds: the part of the squared error that more images leave."""

    mean: float
    error: float
    freedom: int
    p: float
    of_seeds: float


def difference_of(gains: np.ndarray) -> Difference:
    """The mean of the differences of K seeds on n images, float (K, n), its standard error, degrees of freedom, and p.

    Seeds and images are random: the variance is (MS_seed + max(MS_image - MS_rest, 0)) / (K n) with K - 1 degrees of
    freedom, as of readers and cases (Obuchowski and Rockette, 1995; Hillis, 2007).
    """
    seeds, images = gains.shape
    mean = float(gains.mean())
    of_seeds = gains.mean(1, keepdims=True)
    of_images = gains.mean(0, keepdims=True)
    rest = gains - of_seeds - of_images + mean
    ms_seed = images * np.sum((of_seeds - mean) ** 2) / (seeds - 1)
    ms_image = seeds * np.sum((of_images - mean) ** 2) / (images - 1)
    ms_rest = np.sum(rest**2) / ((seeds - 1) * (images - 1))
    error = math.sqrt((ms_seed + max(ms_image - ms_rest, 0)) / (seeds * images))
    p = two_sided_p(mean / error, seeds - 1) if error else float(mean == 0)
    return Difference(mean, error, seeds - 1, p, max(ms_seed - ms_rest, 0) / (seeds * images))


def _angle_quantile(probability: float, a: Any, b: Any) -> np.ndarray:
    """By Newton's method from the mode on, from where it never overshoots, as the density has one mode."""
    total = _integral(np.pi / 2, a, b)
    angle = np.arctan2(np.sqrt(2 * np.asarray(a) - 1), np.sqrt(2 * np.asarray(b) - 1))
    step = np.array(np.inf)
    while np.any(np.abs(step) > _NEAR):
        step = (probability * total - _integral(angle, a, b)) / _density(angle, a, b)
        angle = angle + step
    return angle


def _center_of(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    """The angle of the mean, and about its standard deviation."""
    number = np.asarray(a, float) + b
    return np.arcsin(np.sqrt(a / number)), 0.5 / np.sqrt(number)


def _integral(angle: Any, a: Any, b: Any) -> np.ndarray:
    """Of the density up to an angle."""
    center, deviation = _center_of(a, b)
    start = np.maximum(center - _REACH * deviation, 0)
    end = np.minimum(np.clip(angle, start, center + _REACH * deviation), np.pi / 2)
    half = (end - start) / 2
    angles = start[..., None] + half[..., None] * (1 + _NODES)
    density = _density(angles, np.asarray(a)[..., None], np.asarray(b)[..., None])
    found: np.ndarray = half * (density @ _WEIGHTS)
    return found


def _density(angle: np.ndarray, a: Any, b: Any) -> np.ndarray:
    """Relative to the one at the center."""
    share = a / (a + b)
    of_sine = np.log(np.sin(angle) ** 2 / share + _TINY)  # which is 0 at the mode of t
    of_cosine = np.log(np.cos(angle) ** 2 / (1 - share))
    logs = (a - 0.5) * of_sine + (b - 0.5) * of_cosine
    found: np.ndarray = np.exp(logs)
    return found
