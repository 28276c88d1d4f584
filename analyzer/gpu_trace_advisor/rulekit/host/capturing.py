"""How a program's launches come to be replayed as a graph: an option of its engine, PyTorch's or CUDA's own calls."""

from __future__ import annotations

from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.trace.software import is_pytorch

IN_PYTORCH = (
    'Capture the step: torch.compile(mode="reduce-overhead") or torch.cuda.make_graphed_callables, fixed shapes.'
)
IN_ENGINE = {
    "vLLM": "Let vLLM capture it: without --enforce-eager, and with the batch within its cudagraph_capture_sizes.",
    "SGLang": "Let SGLang capture it: without --disable-cuda-graph, and with the batch within --cuda-graph-max-bs.",
    "TensorRT-LLM": "Let TensorRT-LLM capture it: cuda_graph_config with the batch sizes that come.",
}
"""What captures in a serving engine is an option of it, not a change of the model."""
IN_CUDA = (
    "Capture the loop's launches (cudaStreamBeginCapture) and replay them with cudaGraphLaunch, at fixed addresses."
)


def in_engine(view: DeviceWindow) -> str:
    """What makes the engine that runs here capture; empty where none is known."""
    return next((IN_ENGINE[use.name] for use in view.uses if use.name in IN_ENGINE), "")


def how_to_capture(view: DeviceWindow) -> str:
    """In the words of the engine, of PyTorch or of CUDA."""
    return in_engine(view) or (IN_PYTORCH if is_pytorch(view.trace) else IN_CUDA)
