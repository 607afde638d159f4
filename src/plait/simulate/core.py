"""The event core: when each instruction begins and ends.

Sends never wait and a pair has one sender, so a message's arrival is known when it is sent; ranks can be run one
after another, each until it waits, in any order with the same result. No clock-ordered queue is needed.
"""

from functools import cache
from typing import Any

import numpy as np

from plait.simulate.flat import COMPUTE, RECV, SEND, Flat

COMPILE_FROM = 1_000_000
"""Instructions from which compiling the core pays off (numba takes half a second to load)."""


def run(flat: Flat, *, compiled: bool | None = None) -> tuple[list[float], list[float], list[int]]:
    """Begin and end of each instruction, and per rank the first instruction that it could not finish.

    That is ``first[rank + 1]`` unless the programs deadlock. A SEND ends when its message arrives. ``compiled``
    forces or forbids the compiled core.
    """
    if compiled is None:
        compiled = len(flat.op) >= COMPILE_FROM
    count, messages, ranks = len(flat.op), len(flat.pair), len(flat.first) - 1
    columns: Any = (
        flat.first,
        flat.op,
        flat.seconds,
        flat.message,
        flat.receiver,
        flat.pair,
        flat.occupies,
        flat.latency,
    )
    state: Any = (
        [0.0] * count, [0.0] * count, [0.0] * flat.pairs, [-1.0] * messages,
        list(range(ranks)), [-1] * ranks, list(flat.first[:-1]), [0.0] * ranks,
    )  # fmt: skip
    if compiled:
        arrays = tuple(map(_array, state))
        _compiled()(tuple(map(_array, columns)), arrays)
        state = tuple(column.tolist() for column in arrays)
    else:
        advance(columns, state)
    return state[0], state[1], state[6]


def advance(columns: Any, state: Any) -> None:
    """Run all ranks as far as they go, filling ``begin``, ``end`` and ``position``. ``columns`` as in Flat.

    ``free``: per pair, when it takes the next message. ``arrival``: per message, -1 before it is sent. ``ready``: a
    stack of ranks that can go on. ``waits``: per rank, the message it waits for, or -1. Compiled by numba as it is,
    so it takes lists or arrays and keeps to loops over them.
    """
    first, op, seconds, message, receiver, pair, occupies, latency = columns
    begin, end, free, arrival, ready, waits, position, clock = state
    top = len(ready)
    while top > 0:
        top -= 1
        rank = ready[top]
        i, now = position[rank], clock[rank]
        while i < first[rank + 1]:
            begin[i] = now
            if op[i] == COMPUTE:
                now += seconds[i]
                end[i] = now
            elif op[i] == SEND:
                sent = message[i]
                way = pair[sent]
                free[way] = max(now, free[way]) + occupies[sent]
                arrival[sent] = free[way] + latency[sent]
                end[i] = arrival[sent]
                if waits[receiver[sent]] == sent:
                    waits[receiver[sent]] = -1
                    ready[top] = receiver[sent]
                    top += 1
            elif op[i] == RECV:
                awaited = message[i]
                if arrival[awaited] < 0:
                    waits[rank] = awaited
                    break
                now = max(now, arrival[awaited])
                end[i] = now
            else:
                end[i] = now
            i += 1
        position[rank], clock[rank] = i, now


def _array(column: list[Any]) -> Any:
    return np.array(column, np.float64 if column and isinstance(column[0], float) else np.int64)


@cache
def _compiled() -> Any:
    import numba

    return numba.njit(cache=True)(advance)
