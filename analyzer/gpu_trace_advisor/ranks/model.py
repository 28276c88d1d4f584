"""Several ranks of one run: what each is reduced to, and what comes of looking at them together.

A rank crosses to others only as a RankSummary, a few kilobytes whatever the size of its recording. Times are integer
nanoseconds; those of a summary lie on its recording's clock, those of a Run on one clock for all ranks, from `origin_ns`.
"""

from __future__ import annotations

from gpu_trace_advisor.runtime.classes import dataclass
from gpu_trace_advisor.trace.model import Bool, Int32, Int64, Note

PHASES = ("dataloader", "compute", "communication", "copies", "host", "stalls", "profiler", "unknown")
"""What a device did or waited for, coarser than causes: what one rank can be slower in than another."""


@dataclass(frozen=True)
class Collectives:
    """The collectives that one device took part in, in order of start; c of them."""

    keys: tuple[tuple[str, str, int], ...]
    """Distinct (group, kind, ranks in the group; 0 unknown)."""
    place: Int64
    """[c] which of all collectives of the recording it is, in order of start."""
    key: Int32
    """[c] index into `keys`."""
    order: Int64
    """[c] how many of the same key came before it in the recording."""
    sequence: Int64
    """[c] the number that the library gave it; -1 not recorded."""
    start_ns: Int64
    end_ns: Int64
    bytes: Int64
    """[c] size of the message; -1 not recorded."""
    exposed_ns: Int64
    """[c] of it with no compute running."""
    step: Int32
    """[c] number of the step that launched it; -1 none."""
    inside: Bool
    """[c] it starts in the window."""
    first: Bool
    """[c] the first of its group in the recording."""
    phases_ns: Int64
    """[c, len(PHASES)] what the device did since the end of the group's collective before it."""

    by_step: bool = True
    """Where only every so many are kept: those of whole steps."""

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True)
class RankSummary:
    """One device's window, small enough to be sent around."""

    file: str
    process: int | None
    device: int
    rank: int | None
    """As the recording or the file's name says; None where neither does."""
    world: int | None
    """Ranks of the job, as the recording says."""
    local: str
    """What shares a clock: the recording it comes from, whose name another one may have too."""
    clock_ns: int | None
    """To be added to times to get the Unix epoch; None where the recording does not say."""
    window: str
    start_ns: int
    end_ns: int
    origin_ns: int
    """Start of the recording."""
    busy_ns: int
    causes: tuple[tuple[str, int], ...]
    """The wall time by cause, largest first."""
    phases_ns: tuple[int, ...]
    """The wall time by PHASES."""
    steps: tuple[tuple[int, int, int], ...]
    """(number, start, end) of the kept steps; at most 64, evenly picked."""
    step_count: int
    """All kept steps."""
    step_ns: int | None
    collectives: Collectives
    stride: int
    """Only the collectives of every so many steps (or else every so many of each key) are kept: a power of two."""
    name: str
    """The device's."""
    link: float | None
    """Bytes/s of its fastest link in one direction; None not known."""
    link_name: str = ""


@dataclass(frozen=True)
class Meeting:
    """One collective with everybody's arrival."""

    group: str
    kind: str
    number: int
    """Its sequence number, or its place in the order of its kind."""
    ranks: int
    """That took part, of those recorded."""
    start_ns: int
    """First arrival."""
    end_ns: int
    skew_ns: int
    """From the first arrival to the last."""
    transfer_ns: int
    """What it takes once all are there: the shortest over the ranks."""
    bytes: int | None
    bus_bandwidth: float | None
    """Bytes/s that every link carries for it; None without a size."""
    late: tuple[int, ...]
    """Ranks that came after the others, at most 8."""
    cost_ns: int
    """How much earlier it would have begun without them."""
    flag: str
    """`first` or `outside`: its skew comes from before the window; `apart`: it does not end for all at once. It is charged to
    nobody then; else empty."""
    arrivals_ns: tuple[int, ...]
    """Since the first one, in the order of the run's ranks, -1 for who is not in it; empty for more than 64 ranks."""


@dataclass(frozen=True)
class RankRow:
    """One rank beside the others."""

    rank: int
    file: str
    process: int | None
    device: int
    name: str
    start_ns: int
    """Of its window, from the run's origin."""
    end_ns: int
    wall_ns: int
    step_ns: int | None
    compute_ns: int
    communication_ns: int
    """Exposed; `waiting_ns` for others to come and `moving_ns` with all there add up to what was matched of it."""
    waiting_ns: int
    moving_ns: int
    late_ns: int
    """How much later than the median of the others it came to its collectives, added up."""
    last: int
    """How often it came last."""
    offset_ns: int
    """Added to its clock."""
    offset_error_ns: int | None
    """None where nothing tells."""
    causes: tuple[tuple[str, int], ...]
    phases_ns: tuple[int, ...]
    """In the order of PHASES."""


@dataclass(frozen=True)
class Straggler:
    """Ranks that the others wait for."""

    ranks: tuple[int, ...]
    cost_ns: int
    """Wall time of the window by which the collectives would have begun earlier, had they come with the next ones."""
    waited_ns: int
    """What the other ranks waited for them, added up."""
    times: int
    """Collectives they came last to, of `of` in the window."""
    of: int
    steps: int
    """Steps in which that happened, of `of_steps`; 0 without steps."""
    of_steps: int
    phase: str
    """What took them longer than the others, where one of PHASES explains most of the cost; else empty."""
    phase_ns: int
    """How much longer, added up."""
    cause: str
    """What they do longest in that phase beyond the others, a cause of the attribution; else empty."""
    saving_ns: tuple[int, int] | None
    """What the whole job would gain: from the replay of all ranks where it can be had, else from the arrivals."""
    how: str
    """`replay` or `arrivals`."""
    p: float
    """How often ranks that are all alike would look like that by chance, for noise of the kinds in docs/ranks.md."""
    test: str
    """What tells: step after step `steady` behind the others, sums `apart` from theirs, or `far` from them in one step."""

    @property
    def lasting(self) -> bool:
        """Late over steps; in a single one it may be that step's load, which tells nothing of others."""
        return self.test != "far"


@dataclass(frozen=True)
class OneOff:
    """Ranks that kept the others waiting in few steps, far longer than is usual; no stragglers."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    """Numbers of the steps; empty without steps."""
    times: int
    cost_ns: int
    """By which collectives began later for them, added up."""
    phase: str
    """What took them longer just before, where one of PHASES explains most of it; else empty."""
    phase_ns: int


@dataclass(frozen=True)
class GroupRow:
    """The collectives of one group and kind in the window."""

    group: str
    kind: str
    ranks: int
    count: int
    bytes: int | None
    """Of one, median; None not recorded."""
    transfer_ns: int
    """All of them, once everybody is there."""
    skew_ns: int
    """Median."""
    bus_bandwidth: float | None
    """Bytes/s, median."""
    link: float | None
    """Bytes/s of the fastest link in one direction."""
    link_name: str
    matched_by: str
    """`sequence` or `order`."""


@dataclass(frozen=True)
class Pipeline:
    """Ranks that hand work on to each other."""

    stages: int
    microbatches: int
    bubble: float
    """Share of the wall that the ranks wait for each other, mean over them."""
    expected: float
    """(p - 1) / (m + p - 1)."""
    bubble_ns: int
    """Of one step, or of the window without steps; mean over ranks."""
    slow_rank: int | None = None
    """The rank of the stage that works longer than the others, so that they wait for it; None where they work alike."""
    slow_phase: str = ""
    """In which of PHASES it does."""
    slow_ns: int = 0
    """How much longer than the median of the others in that phase, of one step."""


@dataclass(frozen=True)
class Overlap:
    """What hiding all collectives behind compute would give the whole job."""

    saving_ns: tuple[int, int] | None
    exposed_ns: int
    """Moving bytes with no compute running; median over ranks."""
    why: str
    """Why there is no saving; empty where there is one."""


@dataclass(frozen=True)
class RankSet:
    """The ranks of one run."""

    world: int | None
    rows: tuple[RankRow, ...]
    missing: tuple[int, ...]
    """Ranks of the job without a recording, at most 64."""
    missing_count: int
    origin_ns: int
    """What times count from, on the clock of the first rank."""
    aligned: str
    """`clock`, `collectives`, `clock and collectives`, `one recording` or `not`."""
    offset_error_ns: int | None
    """Largest over the ranks."""
    matched: int
    unmatched: int
    """Collectives that some rank of their group lacks."""
    stride: int
    """Only every so many collectives were looked at."""
    meetings: tuple[Meeting, ...]
    """At most 256, those that cost most, in time order."""
    groups: tuple[GroupRow, ...]
    stragglers: tuple[Straggler, ...]
    skew_before_ns: int
    """Largest skew of a first collective: it comes from before the window and is charged to nobody."""
    waiting_ns: int
    """Exposed waiting for others, mean over ranks; likewise `moving_ns`."""
    moving_ns: int
    step_range_ns: tuple[int, int] | None
    """Shortest and longest step of the ranks."""
    pipeline: Pipeline | None
    overlap: Overlap | None
    notes: tuple[Note, ...] = ()
    one_offs: tuple[OneOff, ...] = ()
    """Of ranks that are no stragglers, the dearest first."""

    def row_of(self, file: str, process: int | None, device: int, rank: int | None) -> RankRow | None:
        """The row of a device; of several files with one name that of the rank which is recorded."""
        rows = [row for row in self.rows if (row.file, row.process, row.device) == (file, process, device)]
        return next((row for row in rows if row.rank == rank), rows[0] if rows else None)

    @property
    def slowest(self) -> int | None:
        """The rank to look at first: the one that the others wait for most, else the one with the longest wall."""
        if self.stragglers:
            ranks = set(self.stragglers[0].ranks)
            return max((r for r in self.rows if r.rank in ranks), key=lambda r: r.late_ns).rank
        return max(self.rows, key=lambda r: r.wall_ns).rank if self.rows else None
