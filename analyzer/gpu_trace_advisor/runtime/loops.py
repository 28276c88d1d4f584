# cython: annotation_typing=False, boundscheck=False, wraparound=False, initializedcheck=False, language_level=3
"""Loops over rows that NumPy has no function for. Where the package was built with a C compiler this file is a compiled module,
with the types of `loops.pxd`; else it is what it says. Call them through `compiled.call`."""

from __future__ import annotations

from typing import Any


def sweep_nested(
    start: Any, end: Any, doing: Any, is_operator: Any, is_frame: Any, is_module: Any, enclosing: int,
    out_start: Any, out_end: Any, out_row: Any, out_doing: Any,
    parent: Any, operator: Any, frame: Any, module: Any, stack: Any, winner: Any,
) -> int:  # fmt: skip
    """Cut a thread's time where the deciding record changes; rows sorted by (start, -end). Returns the number of pieces.

    The deciding record is the one that started last among those running; but a record of a class up to `enclosing` wins
    over what runs inside it, the smallest class first. Records that end inside each other (clock rounding, two tracers)
    do no harm: a record leaves the stack when it is over, in whatever order.
    """
    n = len(start)
    # The records that run, and for each of them the deciding enclosing record among it and those below, -1 for none.
    # Below them all lies a floor, so that the loops need no empty case.
    stack[0] = winner[0] = -1
    top = 0
    count = 0
    now = 0
    i = 0
    while i < n or top > 0:
        # Until when does the present state hold?
        until = start[i] if i < n else end[stack[top]]
        while top > 0 and end[stack[top]] <= now:
            top -= 1
        if top == 0:
            if i >= n:
                break
            now = start[i]
        else:
            deciding = winner[top]
            if deciding != -1 and end[deciding] <= now:  # a winner that ended inside its child: look for another one
                deciding = -1
                for level in range(1, top + 1):
                    candidate = stack[level]
                    if doing[candidate] > enclosing or end[candidate] <= now:
                        continue
                    if deciding == -1 or doing[candidate] < doing[deciding]:
                        deciding = candidate
                for level in range(1, top + 1):
                    winner[level] = deciding
            if i >= n or end[stack[top]] < until:
                until = end[stack[top]]
            if deciding != -1 and end[deciding] < until:
                until = end[deciding]
            if until > now:
                decided = deciding if deciding != -1 else stack[top]
                if count > 0 and out_row[count - 1] == decided and out_end[count - 1] == now:
                    out_end[count - 1] = until
                else:
                    out_start[count] = now
                    out_end[count] = until
                    out_row[count] = decided
                    out_doing[count] = doing[decided]
                    count += 1
                now = until
        while i < n and start[i] <= now:
            while top > 0 and end[stack[top]] <= start[i]:
                top -= 1
            above = stack[top]
            parent[i] = above
            operator[i] = i if is_operator[i] else (operator[above] if above != -1 else -1)
            frame[i] = i if is_frame[i] else (frame[above] if above != -1 else -1)
            module[i] = i if is_module[i] else (module[above] if above != -1 else -1)
            best = winner[top]
            if doing[i] <= enclosing and (best == -1 or doing[i] < doing[best]):
                best = i
            if end[i] > start[i]:
                top += 1
                stack[top] = i
                winner[top] = best
            i += 1
    return count


def divide(start: Any, end: Any, running: Any, part: Any) -> None:
    """Give each instant to the intervals (sorted by start) that run in it, equally.

    `running` has room for all of them.
    """
    n = len(start)
    now = 0
    i = 0
    count = 0  # the first so many of `running` run, in order of their start
    while i < n or count > 0:
        if count == 0:
            now = start[i]
        while i < n and start[i] <= now:
            running[count] = i
            count += 1
            i += 1
        until = end[running[0]]
        longest = running[0]
        for k in range(count):
            r = running[k]
            until = min(until, end[r])
            if end[r] - start[r] > end[longest] - start[longest]:
                longest = r
        if i < n:
            until = min(until, start[i])
        each = (until - now) // count
        part[longest] += (until - now) - each * count
        left = 0
        for k in range(count):
            r = running[k]
            part[r] += each
            if end[r] > until:
                running[left] = r
                left += 1
        count = left
        now = until


def sweep_waited(
    begin: Any, last: Any, wanted: Any, launched: Any, ends: Any, launch: Any, stream: Any, operation: Any, found: Any
) -> None:  # fmt: skip
    """For each wait the operation that ended last, from `last` back to where it began, of those that it waits for."""
    for i in range(len(begin)):
        k = last[i]
        while k >= 0 and ends[k] > begin[i]:
            if launch[k] < launched[i] and (wanted[i] < 0 or stream[k] == wanted[i]):
                found[i] = operation[k]
                break
            k -= 1


def number_by_target(target: Any, forward: Any, first: Any, new: Any) -> None:
    """Write where each edge comes to stand among those that go forward, sorted by target; edges of one in their order.

    `first` has a zero for each target.
    """
    for edge in range(len(target)):
        if forward[edge]:
            first[target[edge]] += 1
    so_far = 0
    for point in range(len(first)):
        so_far += first[point]
        first[point] = so_far - first[point]
    for edge in range(len(target)):
        if forward[edge]:
            new[edge] = first[target[edge]]
            first[target[edge]] += 1


def sweep_delays(
    source: Any, target: Any, weight: Any, far: Any, far_ns: Any, beyond: int, never: int, flags: Any, passes: int,
    duration: Any, is_operation: Any, ref: Any, time: Any,
    explained: int, delay: Any,
) -> None:  # fmt: skip
    """How much later than its edges say an operation with edges comes, where that is more than `explained`."""
    edge = 0
    beside = 0
    count = len(source)
    while edge < count:
        point = target[edge]
        first = edge
        latest = 0
        while edge < count and target[edge] == point:
            ns = weight[edge]
            if ns == beyond:
                while beside < len(far) and far[beside] < edge:
                    beside += 1
                ns = far_ns[beside] if beside < len(far) and far[beside] == edge else never
            at = time[source[edge]] + ns
            if flags[edge] & passes:
                at += duration[ref[source[edge]]]
            if at > latest or edge == first:
                latest = at
            edge += 1
        if is_operation[point] and time[point] - latest > explained:
            delay[ref[point]] = time[point] - latest


def sweep_longest(
    source: Any, target: Any, weight: Any, far: Any, far_ns: Any, beyond: int, never: int, flags: Any, passes: int,
    duration: Any, is_operation: Any, ref: Any, delay: Any,
    origin: int, time: Any,
) -> None:  # fmt: skip
    """Longest paths from the root over points in topological order. A point without an edge comes at the origin."""
    edge = 0
    beside = 0
    count = len(source)
    for point in range(len(time)):
        latest = origin
        first = edge
        while edge < count and target[edge] == point:
            ns = weight[edge]
            if ns == beyond:
                while beside < len(far) and far[beside] < edge:
                    beside += 1
                ns = far_ns[beside] if beside < len(far) and far[beside] == edge else never
            at = time[source[edge]] + ns
            if flags[edge] & passes:
                at += duration[ref[source[edge]]]
            if at > latest or edge == first:
                latest = at
            edge += 1
        if edge > first and is_operation[point]:
            latest += delay[ref[point]]
        time[point] = latest


def walk_back(
    source: Any, target: Any, weight: Any, far: Any, far_ns: Any, beyond: int, never: int, flags: Any, passes: int,
    duration: Any, ref: Any, time: Any, point: int, now: int,
    start: int, path: Any,
) -> int:  # fmt: skip
    """Write the binding edges from a point back to the window's start; returns how many.

    Of a point's incoming edges the one binds that comes last by measured times, of several the first. What delays a point
    delays all of them alike.
    """
    count = 0
    edge = len(source) - 1
    beside = len(far) - 1
    while now > start:
        while edge >= 0 and target[edge] > point:
            edge -= 1
        binding = -1
        latest = 0
        while edge >= 0 and target[edge] == point:
            ns = weight[edge]
            if ns == beyond:
                while beside >= 0 and far[beside] > edge:
                    beside -= 1
                ns = far_ns[beside] if beside >= 0 and far[beside] == edge else never
            at = time[source[edge]] + ns
            if flags[edge] & passes:
                at += duration[ref[source[edge]]]
            if binding < 0 or at >= latest:
                binding = edge
                latest = at
            edge -= 1
        if binding < 0:
            break
        path[count] = binding
        count += 1
        point = source[binding]
        now = min(now, time[point])
    return count


def sweep_part(first_edge: Any, source: Any, weight: Any, origin: int, low: int, high: int, time: Any) -> None:
    """Longest paths over the points [low, high)."""
    for point in range(low, high):
        latest = origin
        first = first_edge[point]
        for edge in range(first, first_edge[point + 1]):
            at = time[source[edge]] + weight[edge]
            if at > latest or edge == first:
                latest = at
        time[point] = latest
