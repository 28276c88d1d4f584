"""Traces drawn as text: what a drawing means, and drawing a trace."""

import pytest
from gpu_trace_advisor.rulekit.drawing import BadDrawing, asked, draw, parse
from gpu_trace_advisor.trace.model import NONE, Kind


def test_a_launch_and_its_operation() -> None:
    trace = parse("host .aa..b\n s7   ...aaa.bb")
    calls, operations = trace.rows(Kind.CALL), trace.operations
    assert trace.start_ns[calls].tolist() == [1_000, 5_000]
    assert trace.end_ns[calls].tolist() == [3_000, 6_000]
    assert trace.start_ns[operations].tolist() == [3_000, 7_000]
    assert trace.end_ns[operations].tolist() == [6_000, 9_000]
    assert trace.launch[operations].tolist() == calls.tolist()
    assert trace.stream[operations].tolist() == [7, 7]


def test_a_letter_again_is_the_next_launch_and_one_without_a_call_is_unlinked() -> None:
    trace = parse("host a..a\ns7 .a..a.x")
    calls = trace.rows(Kind.CALL).tolist()
    assert trace.launch[trace.operations].tolist() == [*calls, NONE]


def test_records_of_the_host() -> None:
    trace = parse("host S===D==A=M=O==P==C=G=F=\nhost2 .O=\ns7 .a")
    host = trace.rows(Kind.CALL, Kind.RANGE, Kind.OPERATOR, Kind.PYTHON)
    assert [trace.label(row) for row in host.tolist() if trace.thread[row] == 0] == [
        "cudaStreamSynchronize", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "cudaMalloc",
        "cuModuleLoadData", "aten::view", "train.py(12): step", "torch/_dynamo/convert_frame.py(1): _compile",
        "<built-in function gc.collect>", "cudaFree",
    ]  # fmt: skip
    assert trace.threads[1].name == "host2"
    assert trace.end_ns[0] - trace.start_ns[0] == 4_000


def test_lines_below_add_what_a_drawing_cannot_show() -> None:
    trace = parse(
        """
        host a.c.n.b
        s7   .a.ccn.b
        s9@1 ......x
        a: aten::mm [64,4096]x[4096,4096] bf16 > ampere_bf16_gemm
        c: Memcpy DtoH (Device -> Pageable) 4MB
        n: ncclDevKernel_AllReduce_Sum_bf16
        b: Memset (Device)
        device: H100 SXM
        scale: 10us
        """
    )
    names = [trace.label(row) for row in trace.operations.tolist()]
    assert names[:3] == ["ampere_bf16_gemm", "Memcpy DtoH (Device -> Pageable)", "ncclDevKernel_AllReduce_Sum_bf16"]
    copy = int(trace.rows(Kind.COPY)[0])
    assert (trace.bytes[copy], trace.end_ns[copy] - trace.start_ns[copy]) == (4_000_000, 20_000)
    operator = int(trace.rows(Kind.OPERATOR)[0])
    assert trace.text(operator, "Input Dims") == "[[64, 4096], [4096, 4096]]"
    assert trace.text(operator, "Input type") == '["c10::BFloat16", "c10::BFloat16"]'
    assert [device.ordinal for device in trace.devices] == [0, 1]
    assert trace.devices[0].sms == 132
    assert [trace.label(row) for row in trace.rows(Kind.CALL).tolist()] == [
        "cudaLaunchKernel", "cudaMemcpyAsync", "cudaLaunchKernel", "cudaMemsetAsync",
    ]  # fmt: skip


def test_one_call_replays_all_operations_of_a_graph() -> None:
    trace = parse("host g....g\ns7 .g.g..g.g\ng: graph")
    calls = trace.rows(Kind.CALL).tolist()
    assert trace.launch[trace.operations].tolist() == [calls[0], calls[0], calls[1], calls[1]]
    assert trace.label(calls[0]) == "cudaGraphLaunch"


def test_a_repeated_drawing_is_so_many_steps() -> None:
    trace = parse("host a...\ns7 .aa.\nrepeat: 3")
    steps = trace.rows(Kind.RANGE).tolist()
    assert [trace.label(row) for row in steps] == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]
    assert trace.start_ns[steps].tolist() == [0, 4_000, 8_000]
    assert trace.start_ns[trace.operations].tolist() == [1_000, 5_000, 9_000]


def test_a_mark_begins_a_step_and_the_last_one_lasts_to_the_end() -> None:
    trace = parse("step |..|..|\nhost a..a..\ns7 .a..a.")
    steps = trace.rows(Kind.RANGE)
    assert trace.start_ns[steps].tolist() == [0, 3_000]
    assert trace.end_ns[steps].tolist() == [3_000, 6_000]


def test_what_a_drawing_asks_for() -> None:
    assert asked("host a\ns7 a\nphase: decode\nweights: 14GB\nscale: 1ms") == {"phase": "decode", "weights": "14GB"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("host a!b", "'!' means nothing"), ("nonsense", "neither a row"), ("host Z==\ns7 a", "Z on host"),
        ("host a\nscale: long", "expected a length"), ("colour: red", "neither a row"),
    ],
)  # fmt: skip
def test_what_is_no_drawing_says_why(text: str, why: str) -> None:
    with pytest.raises(BadDrawing, match=why):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "host a.b.S==c\ns7   .aa.bb..c>>\na: kernel_a\nb: kernel_b\nc: Memcpy HtoD (Pinned -> Device) 4096B",
        "step |....|....\nhost aOO..bP==.\ns7   .aa...b...\na: k1\nb: k2",
    ],
)
def test_draws_what_it_parses(text: str) -> None:
    drawn = draw(parse(text))
    assert parse(drawn).to_pandas().to_dict() == parse(text).to_pandas().to_dict()


def test_a_trace_that_cannot_be_drawn_says_so() -> None:
    with pytest.raises(BadDrawing, match="more than 26"):
        draw(parse("host a.\ns7 .a\nrepeat: 30"))
    with pytest.raises(BadDrawing, match="overlaps"):
        draw(parse("host a.b\ns7   .aa\ns7   .b."))


def test_blocks_of_a_kernel_and_what_the_allocator_holds() -> None:
    trace = parse("host a.b\ns7 .abb\na: my_kernel <<<133, 256>>>\nmemory: 60GB\ndevice: H100 SXM")
    kernel = int(trace.operations[0])
    assert trace.label(kernel) == "my_kernel"
    assert trace.strings[trace.texts["grid"].get(kernel)] == "[133, 1, 1]"
    assert trace.integers["registers per thread"].rows.tolist() == [kernel]
    assert trace.memory.reserved.tolist() == [60_000_000_000]
    assert trace.devices[0].compute_capability == (9, 0)
