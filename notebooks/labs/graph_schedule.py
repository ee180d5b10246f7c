"""List schedules: how long a graph takes on p processors, and the bounds that it must lie between.

Greedy: no processor idles while a task is ready; the task with the longest chain behind it goes first. Then

    max(W / p, D)  <=  T_p  <=  (W - D) / p + D          (Brent 1974; Graham 1966 for greedy schedules)

- `tasks(after, p)` schedules unit tasks and says which processor runs which. `wavefront(L, T)` makes those of L
  recurrent layers over T steps.
- `levels(graph, p)` schedules a captured graph. A node of work W and depth D stands for D levels of unit operations,
  one after the other and as even as possible (W / D each), and all operations of a level may run side by side: a graph
  of W unit tasks with longest chain D, `expand(graph)`, so the same bounds hold, without a list of all tasks.

When not to use it: as a forecast of time. Moving data is free here, and every processor reaches every operation."""

import heapq
from dataclasses import dataclass

from labkit.errors import RequestError
from labkit.operators.work import Cost
from labs.graph import Graph, Node

After = list[tuple[int, ...]]  # for each task the numbers of those that it waits for, all smaller than its own


@dataclass(frozen=True)
class Schedule:
    """`time` T_p in unit operations. `start[i]`, `finish[i]` of each task or node; `processor[i]` of unit tasks only.

    `used`: (from, steps, processors at work) from the beginning to the end."""

    processors: int
    time: int
    start: list[int]
    finish: list[int]
    processor: list[int]
    used: list[tuple[int, int, int]]


def bounds(work: int, depth: int, processors: int) -> tuple[int, int]:
    """(least, most) whole steps that a greedy schedule can take: max(W / p, D) and (W - D) / p + D.

    Raises:
        RequestError: fewer than 1 processor, or more depth than work."""
    _check(processors)
    if depth > work:
        raise RequestError(f"depth {depth} is more than the work {work}; a chain cannot be longer than all there is")
    return max(-(-work // processors), depth), (work - depth) // processors + depth


def _check(processors: int) -> None:
    if processors < 1:
        raise RequestError(f"{processors} processors are out of range; use 1 or more")


def _behind(depths: list[int], after: After) -> list[int]:
    """Length of the longest chain from the beginning of each task to the end of everything."""
    longest = list(depths)
    for at in reversed(range(len(after))):
        for before in after[at]:
            longest[before] = max(longest[before], depths[before] + longest[at])
    return longest


def _followers(after: After) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in after]
    for at, waits in enumerate(after):
        for before in waits:
            found[before].append(at)
    return found


def depth(after: After) -> int:
    """D: unit tasks in the longest chain."""
    return max(_behind([1] * len(after), after), default=0)


def tasks(after: After, processors: int) -> Schedule:
    """Greedy schedule of unit tasks; `after[i]`: the tasks, all before i in the list, that i waits for.

    Raises:
        RequestError: fewer than 1 processor, or a task that waits for a later one."""
    if any(before >= at or before < 0 for at, waits in enumerate(after) for before in waits):
        raise RequestError("a task waits for a later one; number the tasks in an order in which they can run")
    unit = Graph(tuple(Node("task", Cost(1, 1), tuple(set(waits))) for waits in after))
    return levels(unit, processors)


def levels(graph: Graph, processors: int) -> Schedule:
    """Greedy schedule of a captured graph, every node as its levels.

    Raises:
        RequestError: fewer than 1 processor, or a node with less work than depth."""
    _check(processors)
    nodes, after = graph.nodes, [node.after for node in graph.nodes]
    thin = next((node for node in nodes if node.cost.work < node.cost.depth), None)
    if thin:
        raise RequestError(f"{thin.kind} has work {thin.cost.work} below its depth {thin.cost.depth}")
    behind, followers = _behind([node.cost.depth for node in nodes], after), _followers(after)
    waiting = [len(waits) for waits in after]
    start, finish, processor = [-1] * len(nodes), [0] * len(nodes), [-1] * len(nodes)
    ready: list[list[int]] = []  # [-(longest chain left), node, level, operations left in the level]
    used: list[tuple[int, int, int]] = []
    now = 0

    def begin(at: int, level: int) -> None:
        """The next level of a node, or what follows when there is none; nodes that do nothing pass at once."""
        opened = [(at, level)]
        while opened:
            at, level = opened.pop()
            work, deep = nodes[at].cost.work, nodes[at].cost.depth
            if level < deep:
                heapq.heappush(ready, [level - behind[at], at, level, work // deep + (level < work % deep)])
                continue
            finish[at] = now
            if not deep:
                start[at] = now
            for next_one in followers[at]:
                waiting[next_one] -= 1
                if not waiting[next_one]:
                    opened.append((next_one, 0))

    for at, waits in enumerate(after):
        if not waits:
            begin(at, 0)
    while ready:
        steps, free, done = max(1, ready[0][3] // processors), processors, []
        while free and ready:  # for several steps only where one level fills all processors
            entry = ready[0]
            _, at, level, left = entry
            if start[at] < 0:
                start[at], processor[at] = now, processors - free
            taken = min(left, free * steps)
            free -= -(-taken // steps)
            entry[3] = left - taken
            if entry[3]:
                break
            done.append(heapq.heappop(ready))
        used.append((now, steps, processors - free))
        now += steps
        for _, at, level, _ in done:
            begin(at, level + 1)
    return Schedule(processors, now, start, finish, processor, used)


def expand(graph: Graph) -> After:
    """The unit tasks that `levels` stands for, one by one; for graphs of some thousand operations.

    Raises:
        RequestError: more than 20,000 operations."""
    if graph.work > 20_000:
        raise RequestError(f"{graph.work:,} operations are too many to list; expand at most 20,000")
    found: After = []
    last: list[tuple[int, ...]] = []  # of each node: the tasks that end it
    for node in graph.nodes:
        ends = tuple(sorted({task for before in node.after for task in last[before]}))
        for level in range(node.cost.depth):
            count = node.cost.work // node.cost.depth + (level < node.cost.work % node.cost.depth)
            found += [ends] * count
            ends = tuple(range(len(found) - count, len(found)))
        last.append(ends)
    return found


def wavefront(layers: int, steps: int) -> After:
    """Unit tasks of a recurrent network, layer after layer: cell (l, t) is number l * steps + t and waits for the layer
    below at the same step and for its own layer at the step before. Depth L + T - 1, at most min(L, T) side by side."""
    return [tuple([(layer - 1) * steps + t] * (layer > 0) + [layer * steps + t - 1] * (t > 0))
            for layer in range(layers) for t in range(steps)]
