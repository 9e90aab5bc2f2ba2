"""`TapedGenerator`: NumPy's `Generator`, every draw of which is a function of numbers on a tape.

| drawn by                                                 | uniform numbers of the tape                           |
|----------------------------------------------------------|-------------------------------------------------------|
| `random`, `uniform`, `integers`, `choice`                | one a value, by the inverse CDF                       |
| `normal`, `gamma`, `poisson`, `binomial` and most others | the same                                              |
| `permutation`, `shuffle`, `choice` without replacement   | one an element, which they are sorted by              |
| the rest (`multinomial`, `dirichlet`, …)                 | one a call, which seeds a generator of NumPy's for it |

The inverse CDF is the named reparameterization: it is monotone, so that a little more noise is a little more demand.
"""

# NumPy's own signatures are overloads by the dozen.
# pyright: reportIncompatibleMethodOverride=false, reportCallIssue=false, reportArgumentType=false

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy import special

from coulda.errors import CouldaError

GRAIN = 2.0**-24
"""Half of the distance between uniform numbers of single precision: they are moved by it off 0, which has no normal."""
SCALARS = int, float, np.generic
MOST_CUTS = 4096
"""Of one draw: finer ones are taken for continuous."""


class TapeError(CouldaError):
    """More was drawn in a step than there is on the tape, or something that cannot be taped."""


class TapedGenerator(np.random.Generator):
    """Draws from the row of the tape that was put in last, `[K]` uniform numbers, in the order of the calls."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))
        self.load([], "step")

    def load(self, row: Sequence[float], where: Literal["reset", "step"], *, watch: bool = False) -> None:
        """Put in the row of one reset or step.

        Args:
            row: python floats.
            where: which of the two it is.
            watch: whether each draw remembers at which values of its number the result changes (`cuts`, `scales`).
        """
        self.row, self.where, self.watch, self.used = row, where, watch, 0
        self.cuts: list[set[float]] = []
        self.scales: list[str | None] = []
        """Of each number: None where its draw takes separate values, else in which coordinate it is natural."""

    def _take(self, size: Any, call: str, cuts: Any = (), scale: str | None = None) -> Any:
        """The next number as a float, or as many as `size` says as an array."""
        count = 1 if size is None else math.prod(size) if isinstance(size, tuple) else int(size)
        first, self.used = self.used, self.used + count
        if self.used > len(self.row):
            setting = "draws_at_reset" if self.where == "reset" else "draws_per_step"
            raise TapeError(
                f"`{call}` needs {count} after {first} that this {self.where} has drawn, but its tape has "
                f"{len(self.row)}; give GymSimulator {setting}={self.used + 2} or more"
            )
        if self.watch:
            self.cuts += [set(cuts) for _ in range(count)]
            self.scales += [scale] * count
        return self.row[first] if size is None else np.asarray(self.row[first : self.used]).reshape(size)

    def _continuous(self, size: Any, call: str, parameters: tuple[Any, ...], inverse: Callable[[Any], Any], scale: str):
        """A continuous draw; a single one that is watched knows what it is compared with."""
        size = _size(size, parameters)
        u = self._take(size, call, scale=scale)
        value = inverse(u)
        if self.watch and size is None:
            return Watched(value, self.cuts[-1], lambda x: _crossing(inverse, x))
        return value if size is not None else float(value)

    def random(self, size=None, dtype=np.float64, out=None):  # noqa: D102
        if size is None and out is None and not self.watch:
            return self._take(None, "random")
        found = self._continuous(size if out is None else out.shape, "random", (), lambda u: u, "uniform")
        return _out(found, dtype, out)

    def uniform(self, low=0.0, high=1.0, size=None):  # noqa: D102
        inverse = lambda u: low + (np.subtract(high, low)) * u
        return self._continuous(size, "uniform", (low, high), inverse, "uniform")

    def integers(self, low, high=None, size=None, dtype=np.int64, endpoint=False):  # noqa: D102
        low, high = (0, low) if high is None else (low, high)
        if size is None and not self.watch and type(low) is type(high) is int and low < high + endpoint:
            span = high - low + int(endpoint)
            return np.dtype(dtype).type(low + min(int(self._take(None, "integers") * span), span - 1))
        span = np.add(np.subtract(high, low), int(endpoint))
        if np.any(span <= 0):
            raise ValueError("low >= high")
        shape = _size(size, (low, high))
        n = int(span) if np.ndim(span) == 0 else 0
        cuts = [k / n for k in range(1, n)] if self.watch and 0 < n <= MOST_CUTS else ()
        found = np.floor(np.multiply(self._take(shape, "integers", cuts, None if cuts or n == 1 else "uniform"), span))
        found = np.add(np.minimum(found, np.subtract(span, 1)), low)
        return np.dtype(dtype).type(found) if shape is None else found.astype(dtype)

    def choice(self, a, size=None, replace=True, p=None, axis=0, shuffle=True):  # noqa: ARG002, D102
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        n, count = values.shape[axis], 1 if size is None else math.prod(np.atleast_1d(size).tolist())
        if not n:
            raise ValueError("a cannot be empty")
        if replace or count == 1:
            edges = _edges(n, None if p is None else tuple(p))
            u = self._take(_size(size, ()), "choice", edges[:-1] if self.watch else ())
            if size is None:
                index = min(bisect_right(edges, u), n - 1)
            else:
                index = np.minimum(np.searchsorted(edges, u, side="right"), n - 1)
        else:
            keys = -np.log1p(-self._take(n, "choice", scale="uniform"))  # the first of exponential clocks (weights p)
            keys = keys if p is None else np.divide(keys, p, out=np.full(n, np.inf), where=np.asarray(p) > 0)
            index = np.argsort(keys, kind="stable")[:count].reshape(size)
        return values.take(index, axis)

    def permutation(self, x, axis=0):  # noqa: D102
        values = np.arange(x) if np.ndim(x) == 0 else np.asarray(x)
        order = self._take(values.shape[axis], "permutation", scale="uniform").argsort(kind="stable")
        return values.take(order, axis)

    def permuted(self, x, axis=None, out=None):  # noqa: D102
        values = np.asarray(x)
        keys = self._take(values.shape, "permuted", scale="uniform")
        if axis is None:
            found = values.ravel()[np.argsort(keys.ravel(), kind="stable")].reshape(values.shape)
        else:
            found = np.take_along_axis(values, np.argsort(keys, axis=axis, kind="stable"), axis)
        return _out(found, found.dtype, out)

    def shuffle(self, x, axis=0):  # noqa: D102
        if isinstance(x, np.ndarray):
            x[...] = self.permutation(x, axis)
            return
        order = np.argsort(self._take(len(x), "shuffle", scale="uniform"), kind="stable")
        x[:] = [x[i] for i in order]

    def multivariate_normal(self, mean, cov, size=None, check_valid="warn", tol=1e-8, *, method="svd"):  # noqa: ARG002, D102
        lead = () if size is None else tuple(np.atleast_1d(size).tolist())
        values, vectors = np.linalg.eigh(np.asarray(cov, float))
        normals = self.standard_normal((*lead, len(values)))
        return np.asarray(mean) + (normals * np.sqrt(np.maximum(values, 0.0))) @ vectors.T

    def spawn(self, n_children):
        """Generators that draw from the same tape."""
        return [self] * n_children

    def __deepcopy__(self, memo: Any) -> "TapedGenerator":
        return self

    @property
    def bit_generator(self):
        """Refused: raw bits are no draws of a distribution."""
        raise TapeError(
            "the environment asks its generator for `bit_generator`, whose bits cannot be taped; let it draw by "
            "methods of np_random, such as random() or integers()"
        )


class Watched(float):
    """A draw that remembers what it is compared with, so that the numbers that lead to the same decisions are known."""

    cuts: set[float]
    number_of: Callable[[float], float]

    def __new__(cls, value: Any, cuts: set[float], number_of: Callable[[float], float]) -> "Watched":  # noqa: D102
        made = super().__new__(cls, value)
        made.cuts, made.number_of = cuts, number_of
        return made

    def _with(self, others: Any) -> None:
        self.cuts.update(self.number_of(float(other)) for other in np.ravel(others))

    def __lt__(self, other: Any) -> Any:
        self._with(other)
        return float(self) < other

    def __le__(self, other: Any) -> Any:
        self._with(other)
        return float(self) <= other

    def __gt__(self, other: Any) -> Any:
        self._with(other)
        return float(self) > other

    def __ge__(self, other: Any) -> Any:
        self._with(other)
        return float(self) >= other

    __hash__ = float.__hash__

    def __reduce__(self) -> Any:
        return float, (float(self),)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [float(x) if isinstance(x, Watched) else x for x in inputs]
        if ufunc in (np.less, np.less_equal, np.greater, np.greater_equal):
            for mine, other in ((inputs[0], plain[1]), (inputs[1], plain[0])):
                if isinstance(mine, Watched):
                    mine._with(other)
        return getattr(ufunc, method)(*plain, **options)


def _crossing(inverse: Callable[[Any], Any], value: float) -> float:
    """The number in [0, 1] at which an increasing `inverse` reaches `value`, by bisection."""
    low, high = 0.0, 1.0
    if not float(inverse(high - GRAIN)) > value:
        return 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if float(inverse(middle)) < value else (low, middle)
    return high


def _size(size: Any, parameters: tuple[Any, ...]) -> tuple[int, ...] | None:
    if size is not None:
        return size if type(size) is tuple else tuple(np.atleast_1d(size).tolist())
    if all(isinstance(p, SCALARS) for p in parameters):
        return None
    shape = np.broadcast_shapes(*(np.shape(p) for p in parameters))
    return shape or None


def _out(found: Any, dtype: Any, out: Any) -> Any:
    if out is None:
        return found if np.ndim(found) == 0 else found.astype(dtype, copy=False)
    out[...] = found
    return out


def _laplace(u: Any) -> Any:
    return np.where(u < 0.5, np.log(2 * u), -np.log(2 * (1 - np.asarray(u, float))))


def _triangular(u: Any, low: Any, mode: Any, high: Any) -> Any:
    u, width = np.asarray(u, float), high - low
    rising = low + np.sqrt(u * width * (mode - low))
    return np.where(u < (mode - low) / width, rising, high - np.sqrt((1 - u) * width * (high - mode)))


def _inside(u: Any) -> Any:
    """Off 0 and 1."""
    return GRAIN + (1 - 2 * GRAIN) * u


def _poisson(u: Any, lam: Any) -> Any:
    return _least(np.ceil(special.pdtrik(_inside(u), lam)), lambda k: special.pdtr(k, lam), u)


def _binomial(u: Any, n: Any, p: Any) -> Any:
    return _least(np.minimum(np.ceil(special.bdtrik(_inside(u), n, p)), n), lambda k: special.bdtr(k, n, p), u)


def _least(value: Any, cdf: Callable[[Any], Any], u: Any) -> Any:
    """The least whole number whose CDF is above u: what was found by a root, or the one before it."""
    lower = np.maximum(value - 1, 0)
    return np.where(cdf(lower) > np.maximum(u, GRAIN), lower, np.maximum(value, 0))


def _geometric(u: Any, p: Any) -> Any:
    return np.ceil(np.log1p(-_inside(u)) / np.log1p(-np.minimum(p, 1 - 1e-16)))


CONTINUOUS: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "standard_normal": ((), lambda u: special.ndtri(_inside(u))),
    "normal": ((0.0, 1.0), lambda u, loc, scale: loc + np.multiply(scale, special.ndtri(_inside(u)))),
    "lognormal": ((0.0, 1.0), lambda u, mean, sigma: np.exp(mean + np.multiply(sigma, special.ndtri(_inside(u))))),
    "standard_exponential": ((), lambda u: -np.log1p(-u)),
    "exponential": ((1.0,), lambda u, scale: -np.multiply(scale, np.log1p(-u))),
    "standard_gamma": ((None,), lambda u, shape: special.gammaincinv(shape, u)),
    "gamma": ((None, 1.0), lambda u, shape, scale: np.multiply(scale, special.gammaincinv(shape, u))),
    "chisquare": ((None,), lambda u, df: 2 * special.gammaincinv(np.divide(df, 2), u)),
    "beta": ((None, None), lambda u, a, b: special.betaincinv(a, b, u)),
    "standard_t": ((None,), lambda u, df: special.stdtrit(df, _inside(u))),
    "standard_cauchy": ((), lambda u: np.tan(np.pi * (_inside(u) - 0.5))),
    "gumbel": ((0.0, 1.0), lambda u, loc, scale: loc - np.multiply(scale, np.log(-np.log(_inside(u))))),
    "logistic": ((0.0, 1.0), lambda u, loc, scale: loc + np.multiply(scale, special.logit(_inside(u)))),
    "laplace": ((0.0, 1.0), lambda u, loc, scale: loc + np.multiply(scale, _laplace(_inside(u)))),
    "rayleigh": ((1.0,), lambda u, scale: np.multiply(scale, np.sqrt(-2 * np.log1p(-u)))),
    "weibull": ((None,), lambda u, a: (-np.log1p(-u)) ** np.divide(1, a)),
    "pareto": ((None,), lambda u, a: np.expm1(-np.log1p(-u) / a)),
    "power": ((None,), lambda u, a: u ** np.divide(1, a)),
    "triangular": ((None, None, None), lambda u, a, m, b: _triangular(u, a, m, b)),
}
"""The parameters' defaults, and the inverse CDF."""
DISCRETE: dict[str, tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]] = {
    "poisson": ((1.0,), _poisson, lambda k, lam: special.pdtr(k, lam)),
    "binomial": ((None, None), _binomial, lambda k, n, p: special.bdtr(k, n, p)),
    "geometric": ((None,), _geometric, lambda k, p: -np.expm1(k * np.log1p(-min(p, 1 - 1e-16)))),
}
"""The same, and the CDF at whole numbers."""
SEEDED = (
    "bytes", "dirichlet", "f", "hypergeometric", "logseries", "multinomial", "multivariate_hypergeometric",
    "negative_binomial", "noncentral_chisquare", "noncentral_f", "vonmises", "wald", "zipf",
)  # fmt: skip
"""What has no inverse CDF that is quick: each call is that of a generator seeded by one number."""


PARAMETERS = {
    "gamma": ("shape", "scale"), "standard_gamma": ("shape",), "normal": ("loc", "scale"),
    "lognormal": ("mean", "sigma"), "exponential": ("scale",), "chisquare": ("df",), "beta": ("a", "b"),
    "standard_t": ("df",), "gumbel": ("loc", "scale"), "logistic": ("loc", "scale"), "laplace": ("loc", "scale"),
    "rayleigh": ("scale",), "weibull": ("a",), "pareto": ("a",), "power": ("a",),
    "triangular": ("left", "mode", "right"), "poisson": ("lam",), "binomial": ("n", "p"), "geometric": ("p",),
}  # fmt: skip
"""NumPy's own names of them."""


def _arguments(name: str, defaults: tuple[Any, ...], given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any]:
    """Parameters and size of a call."""
    if not named and len(given) == len(defaults):
        return given, None
    names = PARAMETERS.get(name, ())
    values = dict(zip((*names, "size"), given, strict=False)) | named
    parameters = tuple(values.get(one, default) for one, default in zip(names, defaults, strict=True))
    if any(one is None for one in parameters):
        raise TypeError(f"{name}() needs {names}")
    return parameters, values.get("size")


def _continuous_method(name: str) -> Callable[..., Any]:
    defaults, inverse = CONTINUOUS[name]
    scale = "normal" if "normal" in name else "uniform"

    def method(self: TapedGenerator, *given: Any, **named: Any) -> Any:
        out, dtype = named.pop("out", None), named.pop("dtype", np.float64)
        named.pop("method", None)
        parameters, size = _arguments(name, defaults, given, named)
        size = size if out is None else out.shape
        return _out(self._continuous(size, name, parameters, lambda u: inverse(u, *parameters), scale), dtype, out)

    return method


def _discrete_method(name: str) -> Callable[..., Any]:
    defaults, inverse, _ = DISCRETE[name]

    def method(self: TapedGenerator, *given: Any, **named: Any) -> Any:
        parameters, size = _arguments(name, defaults, given, named)
        shape = _size(size, parameters)
        steps = _steps(name, parameters) if all(isinstance(p, SCALARS) for p in parameters) else ()
        cuts = [cut for cut in steps if 0 < cut < 1] if self.watch else ()
        u = self._take(shape, name, cuts, "uniform" if self.watch and not cuts else None)
        if shape is None and len(steps) < MOST_CUTS:
            return bisect_right(steps, max(u, GRAIN))
        found = inverse(u, *parameters)
        return int(found) if shape is None else found.astype(np.int64)

    return method


@lru_cache(maxsize=256)
def _steps(name: str, parameters: tuple[Any, ...]) -> list[float]:
    """The CDF at 0, 1, … as far as a number of the tape can reach: a draw is where its number falls among them."""
    _, inverse, cdf = DISCRETE[name]
    most = int(inverse(1 - 2 * GRAIN, *parameters))
    return cdf(np.arange(min(most, MOST_CUTS)), *parameters).tolist()


@lru_cache(maxsize=256)
def _edges(count: int, p: tuple[float, ...] | None) -> list[float]:
    """Where each of so many outcomes ends, by their probabilities."""
    return (np.arange(1, count + 1) / count if p is None else np.cumsum(p) / np.sum(p)).tolist()


def _seeded_method(name: str) -> Callable[..., Any]:
    def method(self: TapedGenerator, *given: Any, **named: Any) -> Any:
        seed = int(self._take(None, name, scale="uniform") / GRAIN)
        return getattr(np.random.Generator(np.random.PCG64(seed)), name)(*given, **named)

    return method


for _names, _make in ((CONTINUOUS, _continuous_method), (DISCRETE, _discrete_method), (SEEDED, _seeded_method)):
    for _name in _names:
        setattr(TapedGenerator, _name, _make(_name))
