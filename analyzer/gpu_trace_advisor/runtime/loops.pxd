# The types of `loops.py` where it is compiled. Edges, points and rows are 32 bits wide, nanoseconds 64; durations may be either.

cimport cython
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t

ctypedef fused duration_t:
    int32_t
    int64_t

@cython.locals(
    n=int64_t, top=int64_t, count=int64_t, now=int64_t, i=int64_t, until=int64_t, deciding=int64_t, level=int64_t,
    candidate=int64_t, decided=int64_t, above=int64_t, best=int64_t,
)
cpdef sweep_nested(
    const int64_t[::1] start, const int64_t[::1] end, const int8_t[::1] doing, const uint8_t[::1] is_operator,
    const uint8_t[::1] is_frame, const uint8_t[::1] is_module, int64_t enclosing,
    int64_t[::1] out_start, int64_t[::1] out_end, int32_t[::1] out_row, int8_t[::1] out_doing,
    int32_t[::1] parent, int32_t[::1] operator, int32_t[::1] frame, int32_t[::1] module, int32_t[::1] stack,
    int32_t[::1] winner)

@cython.locals(
    n=int64_t, now=int64_t, i=int64_t, count=int64_t, until=int64_t, longest=int64_t, k=int64_t, r=int64_t, each=int64_t,
    left=int64_t,
)
cpdef divide(const int64_t[::1] start, const int64_t[::1] end, int64_t[::1] running, int64_t[::1] part)

@cython.locals(i=int64_t, k=int64_t)
cpdef sweep_waited(
    const int64_t[::1] begin, const int64_t[::1] last, const int32_t[::1] wanted, const int64_t[::1] launched,
    const int64_t[::1] ends, const int64_t[::1] launch, const int32_t[::1] stream, const int32_t[::1] operation,
    int64_t[::1] found)

@cython.locals(edge=int64_t, so_far=int64_t, point=int64_t)
cpdef number_by_target(const int32_t[::1] target, const uint8_t[::1] forward, int32_t[::1] first, int32_t[::1] new)

@cython.locals(
    edge=int64_t, beside=int64_t, count=int64_t, point=int64_t, first=int64_t, latest=int64_t, ns=int64_t, at=int64_t
)
cpdef sweep_delays(
    const int32_t[::1] source, const int32_t[::1] target, const int32_t[::1] weight, const int64_t[::1] far,
    const int64_t[::1] far_ns, int64_t beyond, int64_t never, const int8_t[::1] flags, int64_t passes,
    const duration_t[::1] duration, const uint8_t[::1] is_operation, const int32_t[::1] ref, const int64_t[::1] time,
    int64_t explained, int64_t[::1] delay)

@cython.locals(
    edge=int64_t, beside=int64_t, count=int64_t, point=int64_t, first=int64_t, latest=int64_t, ns=int64_t, at=int64_t
)
cpdef sweep_longest(
    const int32_t[::1] source, const int32_t[::1] target, const int32_t[::1] weight, const int64_t[::1] far,
    const int64_t[::1] far_ns, int64_t beyond, int64_t never, const int8_t[::1] flags, int64_t passes,
    const duration_t[::1] duration, const uint8_t[::1] is_operation, const int32_t[::1] ref, const int64_t[::1] delay,
    int64_t origin, int64_t[::1] time)

@cython.locals(count=int64_t, edge=int64_t, beside=int64_t, binding=int64_t, latest=int64_t, ns=int64_t, at=int64_t)
cpdef walk_back(
    const int32_t[::1] source, const int32_t[::1] target, const int32_t[::1] weight, const int64_t[::1] far,
    const int64_t[::1] far_ns, int64_t beyond, int64_t never, const int8_t[::1] flags, int64_t passes,
    const duration_t[::1] duration, const int32_t[::1] ref, const int64_t[::1] time, int64_t point, int64_t now,
    int64_t start, int32_t[::1] path)

@cython.locals(point=int64_t, latest=int64_t, first=int64_t, edge=int64_t, at=int64_t)
cpdef sweep_part(
    const int32_t[::1] first_edge, const int32_t[::1] source, const int64_t[::1] weight, int64_t origin, int64_t low,
    int64_t high, int64_t[::1] time)
