"""The directed acyclic graph of an SCM, as `{node: parents}`."""

from collections.abc import Iterable, Mapping

from coulda.errors import CouldaError

Graph = Mapping[str, tuple[str, ...]]


def topological_order(graph: Graph) -> tuple[str, ...]:
    """Nodes with every parent before its children, otherwise in the order given (Kahn's algorithm).

    >>> topological_order({"Y": ("X",), "X": ()})
    ('X', 'Y')
    >>> topological_order({"X": ("Y",), "Y": ("X",)})
    Traceback (most recent call last):
    coulda.errors.CouldaError: X → Y → X
    """
    order: list[str] = []
    placed: set[str] = set()
    waiting = list(graph)
    while waiting:
        ready = [node for node in waiting if placed.issuperset(graph[node])]
        if not ready:
            raise CouldaError(" → ".join(_cycle({node: graph[node] for node in waiting})))
        order += ready
        placed.update(ready)
        waiting = [node for node in waiting if node not in placed]
    return tuple(order)


def _cycle(graph: Graph) -> list[str]:
    """One cycle of a graph in which every node still has a parent, from cause to effect."""
    path = [next(iter(graph))]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in graph[path[-1]] if parent in graph))
    return path[path.index(path[-1]) :][::-1]


def ancestors(graph: Graph, nodes: Iterable[str]) -> frozenset[str]:
    """`nodes` and everything they depend on.

    >>> sorted(ancestors({"X": (), "Y": ("X",), "Z": ("Y",)}, ["Y"]))
    ['X', 'Y']
    """
    found: set[str] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += graph[node]
    return frozenset(found)


def descendants(graph: Graph, nodes: Iterable[str]) -> frozenset[str]:
    """`nodes` and everything that depends on them.

    >>> sorted(descendants({"X": (), "Y": ("X",), "Z": ("Y",)}, ["Y"]))
    ['Y', 'Z']
    """
    children: dict[str, list[str]] = {node: [] for node in graph}
    for node, parents in graph.items():
        for parent in parents:
            children[parent].append(node)
    return ancestors({node: tuple(kids) for node, kids in children.items()}, nodes)
