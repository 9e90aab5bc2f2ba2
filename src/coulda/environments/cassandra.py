"""Cassandra's `.pomdp` files (pomdp.org): the whole format, with errors that name the line.

    discount: 0.95
    values: reward
    states: tiger-left tiger-right
    actions: listen open-left open-right
    observations: hear-left hear-right
    start: uniform
    T: listen identity
    O: listen : tiger-left 0.85 0.15
    R: listen : * : * : * -1

A file without `observations` describes an observed process. Later lines overrule earlier ones.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coulda.environments.tabular import TabularPOMDP
from coulda.errors import CouldaError

PREAMBLE = ("discount", "values", "states", "actions", "observations")
_KEYWORDS = (*PREAMBLE, "start", "T", "O", "R")
_TOKEN = re.compile(r"[:*]|[^\s:*]+")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


class CassandraError(CouldaError):
    """A `.pomdp` file that cannot be read; the message begins with its line."""


class CassandraFile(NamedTuple):
    """What a `.pomdp` file says."""

    discount: float
    states: tuple[str, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...] | None
    """None for a process that is observed."""
    start: np.ndarray
    """`[S]`."""
    transition: np.ndarray
    """`[A, S, S]`."""
    observation: np.ndarray | None
    """P(o | a, s'), `[A, S, O]`."""
    reward: np.ndarray
    """`[A, S, S]`, or `[A, S, S, O]` where some reward depends on the observation; costs are negated."""

    def model(self, *, horizon: int, reparameterization: str) -> TabularPOMDP:
        """The POMDP of this file, undiscounted over `horizon` steps."""
        if self.reward.ndim == 4:
            return _observation_in_state(self).model(horizon=horizon, reparameterization=reparameterization)
        observation = np.eye(len(self.states)) if self.observation is None else self.observation
        return TabularPOMDP(
            self.start,
            self.transition,
            observation,
            self.reward,
            horizon=horizon,
            reparameterization=reparameterization,
        )


def read_cassandra(path: str | Path) -> CassandraFile:
    """Read a `.pomdp` file."""
    return parse_cassandra(Path(path).read_text())


def parse_cassandra(text: str) -> CassandraFile:
    """Read the text of a `.pomdp` file.

    >>> file = parse_cassandra('''
    ...     discount: 0.9   # everything after a hash is a comment
    ...     values: reward
    ...     states: 2
    ...     actions: stay go
    ...     observations: 2
    ...     T: stay identity
    ...     T: go uniform
    ...     O: * identity
    ...     R: go : 0 : * : * 5
    ... ''')
    >>> file.transition[1].tolist(), file.reward[1].tolist()
    ([[0.5, 0.5], [0.5, 0.5]], [[5.0, 5.0], [0.0, 0.0]])
    """
    return _Parser(text).file()


class _Token(NamedTuple):
    text: str
    line: int


class _Statement(NamedTuple):
    keyword: str
    line: int
    arguments: list[list[_Token]]
    """The tokens between colons."""


class _Parser:
    """Reads statements in order; the preamble gives names and sizes, the rest fills tables."""

    def __init__(self, text: str):
        self.statements = _statements(text)
        self.preamble = {s.keyword: s for s in self.statements if s.keyword in PREAMBLE}
        self._check_order()
        self.states = self._names("states")
        self.actions = self._names("actions")
        observed = "observations" not in self.preamble
        self.observations = None if observed else self._names("observations")
        size = len(self.actions), len(self.states), len(self.states)
        self.start = np.full(len(self.states), 1 / len(self.states))
        self.transition = np.zeros(size)
        self.observation = None if observed else np.zeros((*size[:2], len(self.observations or ())))
        # A fourth axis, of one observation, for all of them; it grows when a reward depends on which it is.
        self.reward = np.zeros((*size, 1))
        self.last_line = {"T": np.zeros(size[:2], int), "O": np.zeros(size[:2], int)}

    def file(self) -> CassandraFile:
        read = {"start": self._start, "T": self._transition, "O": self._observation, "R": self._reward}
        for statement in self.statements:
            if statement.keyword in read:
                read[statement.keyword](statement)
        self._check_rows("T", self.transition)
        if self.observation is not None:
            self._check_rows("O", self.observation)
        reward = -self.reward if self._is_cost() else self.reward
        return CassandraFile(
            self._discount(),
            self.states,
            self.actions,
            self.observations,
            self.start,
            _normalized(self.transition),
            None if self.observation is None else _normalized(self.observation),
            reward[..., 0] if reward.shape[-1] == 1 else reward,
        )

    def _check_order(self) -> None:
        for name in ("states", "actions"):
            if name not in self.preamble:
                raise CassandraError(f"line 1: the file has no `{name}:`. Add it before the first T, O or R.")
        last = max(s.line for s in self.preamble.values())
        early = [s for s in self.statements if s.keyword not in PREAMBLE and s.line < last]
        if early:
            raise CassandraError(
                f"line {early[0].line}: `{early[0].keyword}` comes before the preamble ends on line {last}. "
                f"Move {', '.join(PREAMBLE)} to the top."
            )

    def _names(self, keyword: str) -> tuple[str, ...]:
        statement = self.preamble[keyword]
        tokens = _single(statement)
        if len(tokens) == 1 and tokens[0].text.isdigit():
            if int(tokens[0].text) == 0:
                raise CassandraError(f"line {tokens[0].line}: `{keyword}: 0`; there must be at least one.")
            return tuple(str(i) for i in range(int(tokens[0].text)))
        names = tuple(token.text for token in tokens)
        for i, token in enumerate(tokens):
            if token.text == "*" or token.text[0].isdigit():
                raise CassandraError(f"line {token.line}: {token.text!r} is no name for one of the {keyword}.")
            if token.text in names[:i]:
                raise CassandraError(f"line {token.line}: {token.text!r} is named twice among the {keyword}.")
        return names

    def _discount(self) -> float:
        if "discount" not in self.preamble:
            return 1.0
        token = _single(self.preamble["discount"], 1)[0]
        value = _number(token)
        if not 0 <= value <= 1:
            raise CassandraError(f"line {token.line}: discount {value:g} is not between 0 and 1.")
        return value

    def _is_cost(self) -> bool:
        if "values" not in self.preamble:
            return False
        token = _single(self.preamble["values"], 1)[0]
        if token.text not in ("reward", "cost"):
            raise CassandraError(f"line {token.line}: `values: {token.text}`; it is `reward` or `cost`.")
        return token.text == "cost"

    def _start(self, statement: _Statement) -> None:
        kind, size = statement.keyword, len(self.states)
        *mode, tokens = statement.arguments
        if mode and mode[0]:
            kind = mode[0][0].text
            chosen = [self._indices("states", token) for token in tokens]
            mask = np.zeros(size)
            mask[[i for indices in chosen for i in indices]] = 1
            mask = mask if kind == "include" else 1 - mask
            if not mask.any():
                raise CassandraError(f"line {statement.line}: `start {kind}` leaves no state.")
            self.start = mask / mask.sum()
        elif len(tokens) == 1 and tokens[0].text == "uniform":
            self.start = np.full(size, 1 / size)
        elif len(tokens) == 1 and (size > 1 or not _NUMBER.fullmatch(tokens[0].text)):
            self.start = np.zeros(size)
            self.start[self._indices("states", tokens[0])] = 1
        else:
            self.start = _numbers(statement, tokens, (size,))
            if abs(self.start.sum() - 1) > 1e-4 or (self.start < 0).any():
                raise CassandraError(
                    f"line {statement.line}: the start probabilities must be ≥ 0 and sum to 1; "
                    f"they sum to {self.start.sum():g}."
                )
            self.start = self.start / self.start.sum()

    def _transition(self, statement: _Statement) -> None:
        self._fill(statement, self.transition, ("actions", "states", "states"), "T")

    def _observation(self, statement: _Statement) -> None:
        if self.observation is None:
            raise CassandraError(f"line {statement.line}: `O` in a file without `observations:`. Add them.")
        self._fill(statement, self.observation, ("actions", "states", "observations"), "O")

    def _reward(self, statement: _Statement) -> None:
        kinds = ("actions", "states", "states") + (("observations",) if self.observations else ())
        indices, values = self._head(statement, kinds)
        if len(indices) < 2:
            raise CassandraError(f"line {statement.line}: `R` needs at least an action and a state.")
        shape = tuple(len(getattr(self, kind)) for kind in kinds[len(indices) :])
        every = [*indices, *(list(range(size)) for size in shape)]
        block = _numbers(statement, values, shape).reshape((1,) * len(indices) + shape)
        if not self.observations:
            every, block = [*every, [0]], block[..., None]
        elif self.reward.shape[-1] == 1:
            if len(every[3]) == len(self.observations) and (block == block[..., :1]).all():
                every[3], block = [0], block[..., :1]
            else:
                self.reward = np.repeat(self.reward, len(self.observations), axis=-1)
        self.reward[np.ix_(*every)] = block

    def _fill(self, statement: _Statement, table: np.ndarray, kinds: Sequence[str], keyword: str) -> None:
        indices, values = self._head(statement, kinds)
        shape = table.shape[len(indices) :]
        word = values[0].text if len(values) == 1 else None
        if word == "uniform" and shape:
            block = np.full(shape, 1 / shape[-1])
        elif word == "identity" and len(shape) == 2 and shape[0] == shape[1]:
            block = np.eye(shape[0])
        elif word == "reset" and shape and keyword == "T":
            block = np.broadcast_to(self.start, shape)
        else:
            block = _numbers(statement, values, shape)
            if (block < 0).any() or (block > 1).any():
                raise CassandraError(f"line {statement.line}: {keyword} holds probabilities, between 0 and 1.")
        every = [*indices, *(list(range(size)) for size in shape)]
        table[np.ix_(*every)] = np.reshape(block, (1,) * len(indices) + shape)
        self.last_line[keyword][np.ix_(*every[:2])] = statement.line

    def _head(self, statement: _Statement, kinds: Sequence[str]) -> tuple[list[list[int]], list[_Token]]:
        """The places that a statement names, and the tokens of its values."""
        arguments = [argument for argument in statement.arguments if argument]
        if not arguments or len(arguments) > len(kinds):
            raise CassandraError(
                f"line {statement.line}: `{statement.keyword}` takes up to {len(kinds)} of "
                f"{' : '.join(kinds)}; this has {len(arguments)}."
            )
        heads = [argument[:1] for argument in arguments]
        for argument in arguments[:-1]:
            if len(argument) != 1:
                raise CassandraError(
                    f"line {argument[1].line}: {argument[1].text!r} where a colon or nothing was expected."
                )
        indices = [self._indices(kind, head[0]) for kind, head in zip(kinds, heads, strict=False)]
        return indices, arguments[-1][1:]

    def _indices(self, kind: str, token: _Token) -> list[int]:
        names = getattr(self, kind)
        if token.text == "*":
            return list(range(len(names)))
        if token.text in names:
            return [names.index(token.text)]
        if token.text.isdigit() and int(token.text) < len(names):
            return [int(token.text)]
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        raise CassandraError(f"line {token.line}: {token.text!r} is none of the {len(names)} {kind} ({shown}).")

    def _check_rows(self, keyword: str, table: np.ndarray) -> None:
        bad = np.argwhere(np.abs(table.sum(-1) - 1) > 1e-4)
        if len(bad):
            action, state = (int(i) for i in bad[0])
            line = int(self.last_line[keyword][action, state])
            where = f"line {line}" if line else f"line {self.statements[-1].line}"
            raise CassandraError(
                f"{where}: {keyword}: {self.actions[action]} : {self.states[state]} sums to "
                f"{table[action, state].sum():g}, not 1{'' if line else '; no line sets it'}."
            )


def _statements(text: str) -> list[_Statement]:
    """Split at keywords that are followed by a colon (`start include:` being one)."""
    lines = enumerate((line.partition("#")[0] for line in text.splitlines()), start=1)
    tokens = [_Token(match, number) for number, line in lines for match in _TOKEN.findall(line)]
    if not tokens:
        raise CassandraError("line 1: the file is empty.")
    starts = [i for i in range(len(tokens)) if _starts_statement(tokens, i)]
    if not starts or starts[0] != 0:
        raise CassandraError(f"line {tokens[0].line}: {tokens[0].text!r} where one of {_KEYWORDS} was expected.")
    pieces = [tokens[a:b] for a, b in zip(starts, [*starts[1:], len(tokens)], strict=True)]
    return [_statement(piece) for piece in pieces]


def _starts_statement(tokens: list[_Token], i: int) -> bool:
    """A keyword and a colon, at the beginning of a line: a state may be called T as well."""
    if tokens[i].text not in _KEYWORDS or (i > 0 and tokens[i - 1].line == tokens[i].line):
        return False
    rest = [token.text for token in tokens[i + 1 : i + 3]]
    return rest[:1] == [":"] or (tokens[i].text == "start" and rest in (["include", ":"], ["exclude", ":"]))


def _statement(tokens: list[_Token]) -> _Statement:
    arguments: list[list[_Token]] = [[]]
    for token in tokens[1:]:
        if token.text == ":":
            arguments.append([])
        else:
            arguments[-1].append(token)
    # The tokens before the first colon are empty but for `start include`.
    first, *rest = arguments
    return _Statement(tokens[0].text, tokens[0].line, [first, *rest] if first else [[], *rest])


def _single(statement: _Statement, count: int | None = None) -> list[_Token]:
    tokens = statement.arguments[-1]
    if len(statement.arguments) > 2 or not tokens or (count is not None and len(tokens) != count):
        raise CassandraError(
            f"line {statement.line}: `{statement.keyword}:` takes {'a list' if count is None else count} "
            f"after one colon; this has {len(tokens)}."
        )
    return tokens


def _number(token: _Token) -> float:
    if not _NUMBER.fullmatch(token.text):
        raise CassandraError(f"line {token.line}: {token.text!r} is not a number.")
    return float(token.text)


def _numbers(statement: _Statement, tokens: list[_Token], shape: tuple[int, ...]) -> np.ndarray:
    values = [_number(token) for token in tokens]
    if len(values) != int(np.prod(shape)):
        size = " × ".join(map(str, shape)) or "1"
        raise CassandraError(
            f"line {statement.line}: `{statement.keyword}` needs {size} numbers here; this has {len(values)}."
        )
    return np.array(values).reshape(shape)


def _normalized(table: np.ndarray) -> np.ndarray:
    return table / table.sum(-1, keepdims=True)


def _observation_in_state(file: CassandraFile) -> CassandraFile:
    """The same process with states (s, o), for rewards that depend on o; each state emits its own o.

    Before the first action there is no observation, so the first states are (s, 0) and their o is never seen.
    """
    assert file.observations is not None
    assert file.observation is not None
    actions, states, observations = file.observation.shape
    size = states * observations
    arrive = np.einsum("ast,ato->asto", file.transition, file.observation).reshape(actions, states, size)
    start = np.zeros((states, observations))
    start[:, 0] = file.start
    emit = np.tile(np.eye(observations), (states, 1))
    reward = file.reward.reshape(actions, states, size)
    return file._replace(
        states=tuple(f"{s}/{o}" for s in file.states for o in file.observations),
        start=start.ravel(),
        transition=np.repeat(arrive, observations, axis=1),
        observation=np.broadcast_to(emit, (actions, size, observations)),
        reward=np.repeat(reward, observations, axis=1),
    )
