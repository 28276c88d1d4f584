"""What is wrong with a program's collectives in particular is said before what overlapping, graphs or compiling would give."""

from __future__ import annotations

from typing import Any

from tests.build import Event, advice, annotation, call, kernel, op, step

RANKS = {
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    "Group size": 8,
    "dtype": "Float",
}
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Program:
    """A host far ahead of its GPU, one operation after the other on streams 7 and 20."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.host = self.device = 0.0
        self.number, self.stream = 0, 7

    def launch(self, name: str, length: float, operator: str, *, tid: int = 1, stream: int = 7, **more: Any) -> None:
        if stream != self.stream:  # the other stream waits for what ran before
            for wait in ("cudaEventRecordWithFlags", "cudaStreamWaitEvent"):
                self.number += 1
                self.events.append(call(self.host, self.host + 1, self.number, wait))
                self.host += 1
            self.stream = stream
        self.number += 1
        at = self.host
        self.events += [op(operator, at, at + 18, tid=tid), call(at + 5, at + 10, self.number, tid=tid)]
        self.device = max(self.device + 1, at + 14)
        self.events.append(kernel(self.device, self.device + length, self.number, name, stream=stream, **more))
        self.host, self.device = at + 20, self.device + length

    def reduce(self, length: float, elements: int) -> None:
        more: dict[str, Any] = {
            "Collective name": "allreduce",
            "In msg nelems": elements,
            "Out msg nelems": elements,
            **RANKS,
        }
        self.launch(REDUCE, length, "c10d::allreduce_", stream=20, **more)

    def passes(self, layers: int, length: float) -> None:
        for _ in range(layers):
            self.launch("forward_gemm", length, "aten::mm")
        for _ in range(layers):
            self.launch("backward_gemm", 2 * length, "autograd::engine::evaluate_function: MmBackward0", tid=2)

    def update(self) -> None:
        begin = self.host
        self.launch("multi_tensor_apply_kernel<FusedAdam>", 300, "aten::_fused_adamw_")
        self.events.append(annotation("Optimizer.step#AdamW.step", begin, self.host))


def test_reducing_once_comes_before_hiding_what_is_reduced_four_times() -> None:
    """Four backward passes a step, each with all of its all-reduces: 3 of 4 of 32 x 900 µs need not be."""
    program = Program()
    for i in range(4):
        begin = program.host
        for _ in range(4):
            program.passes(4, 100)
            for _ in range(2):
                program.reduce(900, 25 << 20)
        program.update()
        program.events.append(step(i, begin, program.host))
    given = advice(*program.events)
    first, second, *_ = [finding for finding in given.findings if finding.saving_ns]
    assert (first.rule, second.rule) == ("grad-accum-nosync", "comm-overlap")
    assert first.ns == 4 * 3 * 2 * 900_000
    assert first.saving_ns is not None and first.saving_ns[1] <= first.ns


def test_reducing_each_parameter_comes_before_capturing_the_step() -> None:
    """100 all-reduces of 4 µs a step, each with 20 µs of the host's work, and nothing else that is launched slowly."""
    program = Program()
    for i in range(5):
        begin = program.host
        program.passes(8, 100)
        program.host = program.device
        for _ in range(100):
            program.reduce(4, 4096)
        program.update()
        program.events.append(step(i, begin, program.host))
    rules = [finding.rule for finding in advice(*program.events).findings]
    assert "ddp-host" in rules
    assert next(one for one in rules if one in ("ddp-host", "cuda-graphs", "torch-compile")) == "ddp-host"


def test_neighbours_that_exchange_blocks_are_not_told_of_gradients() -> None:
    """Eight times a step a block goes to the next rank, and then one is worked on for as long: ring attention."""
    program = Program()
    sent: dict[str, Any] = {**RANKS, "Collective name": "send", "In msg nelems": 8 << 20, "Out msg nelems": 8 << 20}
    for i in range(4):
        begin = program.host
        for _ in range(8):
            program.launch(
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 400, "nccl:send", stream=20, **sent
            )
            program.launch("flash_fwd_kernel", 400, "aten::_flash_attention_forward")
        program.events.append(step(i, begin, program.host))
    overlap = next(finding for finding in advice(*program.events).findings if finding.rule == "comm-overlap")
    assert overlap.ns == 4 * 8 * 400_000
    assert (
        overlap.how.startswith("Exchange the next block while this one is worked on") and "gradient" not in overlap.how
    )


def test_broadcasts_that_need_not_be_come_before_hiding_communication() -> None:
    """50 broadcasts of 60 µs before each forward pass, of buffers, beside one all-reduce of 2 ms after it."""
    program = Program()
    more: dict[str, Any] = {**RANKS, "Collective name": "broadcast", "In msg nelems": 64, "Out msg nelems": 64}
    for i in range(4):
        begin = program.host
        for _ in range(50):
            program.launch(
                "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgs)", 60, "c10d::broadcast_", stream=20, **more
            )
        program.passes(8, 200)
        program.reduce(2000, 25 << 20)
        program.update()
        program.events.append(step(i, begin, program.host))
    first, second, *_ = advice(*program.events).findings
    assert (first.rule, first.saving_ns, second.rule) == ("ddp-host", None, "comm-overlap")
    assert "broadcast_buffers=False" in first.how
    assert first.ns >= 4 * 50 * 60_000
