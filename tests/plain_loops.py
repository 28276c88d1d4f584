"""The loops as plain Python, also where they are compiled."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from gpu_trace_advisor.runtime import compiled


def plain_loops() -> ModuleType:
    """`gpu_trace_advisor.runtime.loops`, from its source."""
    spec = spec_from_file_location("plain_loops", Path(compiled.__file__).with_name("loops.py"))
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
