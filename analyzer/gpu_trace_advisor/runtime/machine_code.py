"""Machine code of loops over arrays: made by numba once, kept in a file, and run from there without numba.

Importing numba takes as long as reading a trace of 100 MB. Code that is kept is loaded by llvmlite, in a tenth of the time.
"""

import ctypes
import hashlib
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_PACKAGE = Path(__file__).parents[1]
_MODES = ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
"""What changes the code that numba makes."""
OPTIONS: dict[str, Any] = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
"""For numba. Not called from Python, which halves the time to compile. Arrays are lent by the caller and none is made:
counting references to them, with instructions that lock the bus, takes a third of the time where several threads run."""
_MADE_HERE = re.compile(r"llvm\.|mem(cpy|move|set)$")
"""Functions that need no library, or the one of C alone."""

_Signature = tuple[str, ...]
"""What each argument is: see `_kind_of`."""

_lock = threading.RLock()
_loading = False
_compiling = False
_engines: list[Any] = []
"""They own the loaded code."""


class Loop:
    """A function over arrays and integers that runs as machine code, without the interpreter lock.

    where: "package.module:function". The module, which may import numba, is not imported when the code is kept. The
    function takes NumPy arrays, which it writes its results to, and integers. It makes no array and no list, and
    returns an integer or nothing. sources: other modules whose constants become part of the code.
    """

    def __init__(self, where: str, *sources: str) -> None:
        self.where = where
        self._sources = ("gpu_trace_advisor.runtime.machine_code", where.partition(":")[0], *sources)
        self._ready: dict[_Signature, Callable[..., Any]] = {}
        self._missing: set[_Signature] = set()

    def __call__(self, *args: Any) -> Any:
        """Run it, compiled first if need be.

        Raises ImportError where that takes numba and there is none, ArithmeticError when the function raises anything.
        """
        signature = tuple(map(_kind_of, args))
        run = self._ready.get(signature) or self._prepare(signature, compiling=True)
        assert run
        return run(args)

    def is_ready(self, *args: Any) -> bool:
        """Whether it runs on such arguments now: kept, or compiled where `compile_from_now` was said and numba is there."""
        signature = tuple(map(_kind_of, args))
        with suppress(ImportError):
            return signature in self._ready or bool(self._prepare(signature, _compiling))
        return False

    def _prepare(self, signature: _Signature, compiling: bool) -> Callable[..., Any] | None:
        with _lock:
            if signature not in self._ready and (compiling or signature not in self._missing):
                name = self._name(signature)
                code = _kept(name)
                if not code and compiling:
                    code = _compile(self.where, signature)
                    _keep(name, code)
                if code:
                    self._ready[signature] = _loaded(code, self.where)
                else:
                    self._missing.add(signature)
        return self._ready.get(signature)

    def _name(self, signature: _Signature) -> str:
        """Of the file: it tells apart whatever the code depends on."""
        digest = hashlib.sha256(repr((_machine(), signature)).encode())
        for module in self._sources:
            spec = importlib.util.find_spec(module)
            digest.update(Path(spec.origin).read_bytes() if spec and spec.origin else b"")
        return f"{self.where.replace(':', '.')}-{digest.hexdigest()[:24]}.code"


def in_use() -> bool:
    """Whether this process runs machine code already or will, so that more of it comes cheap."""
    return _loading or bool(_engines)


def load_from_now() -> None:
    """What this process works on is large enough, in sum, to be worth the start of what loads code that is kept."""
    global _loading
    _loading = True


def compile_from_now() -> None:
    """What this process works on is large enough to be worth the seconds that compiling takes."""
    global _compiling
    _compiling = True


# ---- arguments -------------------------------------------------------------------------------------------------------


def _kind_of(value: Any) -> str:
    """What the code depends on: an array's type and number of dimensions; "" for an integer."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise ValueError("machine code takes arrays whose items lie one behind the other")
        return f"{value.dtype.str} {value.ndim}"
    return ""


def _flat(value: Any) -> Iterator[int]:
    """An argument as numba's calling convention passes it: an array as the fields of its struct, which are owner, parent,
    number and size of items, address, shape, strides."""
    if isinstance(value, np.ndarray):
        yield from (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
    else:
        yield int(value)


def _count(kind: str) -> int:
    """How many values `_flat` makes of an argument of a kind."""
    return 5 + 2 * int(kind.split()[1]) if kind else 1


# ---- code ------------------------------------------------------------------------------------------------------------


class _Code(NamedTuple):
    symbol: str
    returns: bool
    arguments: int
    content: bytes
    """Of an object file."""


def _compile(where: str, signature: _Signature) -> _Code:
    import numba
    from numba.core import config, types

    if getattr(config, "DISABLE_JIT", 0):
        raise ImportError("numba is told not to compile")

    def type_of(kind: str) -> Any:
        if not kind:
            return types.int64
        dtype, dimensions = kind.split()
        return types.Array(numba.from_dtype(np.dtype(dtype)), int(dimensions), "C")

    module, _, name = where.partition(":")
    function = getattr(importlib.import_module(module), name)
    compiler: Any = numba.njit(**OPTIONS)(function)
    compiler.compile(tuple(map(type_of, signature)))
    (made,) = compiler.overloads.values()
    returned = made.signature.return_type
    assert returned in (types.int64, types.none), f"{where} returns {returned}"
    for needed in re.findall(r'^declare .*?@"?([^"(]+)"?\(', made.library.get_llvm_str(), re.MULTILINE):
        assert _MADE_HERE.match(needed), f"{where} needs {needed}, which is part of numba"
    _, _, (content, _) = made.library.serialize_using_object_code()
    return _Code(made.fndesc.llvm_func_name, returned != types.none, sum(map(_count, signature)), content)


def _loaded(code: _Code, where: str) -> Callable[..., Any]:
    """Calls the code. numba's convention: status = function(&result, &exception, arguments …), status 0 when all is well."""
    llvm = _llvm()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    pointers = ctypes.c_void_p, ctypes.c_void_p
    convention = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers, *[ctypes.c_int64] * code.arguments)
    function = convention(engine.get_function_address(code.symbol))
    _engines.append(engine)

    def run(args: tuple[Any, ...]) -> int | None:
        result, exception = ctypes.c_int64(), ctypes.c_void_p()
        if function(ctypes.addressof(result), ctypes.addressof(exception), *chain.from_iterable(map(_flat, args))):
            raise ArithmeticError(f"{where} failed: an index out of its range, or a division by zero")
        return result.value if code.returns else None

    return run


@cache
def _machine() -> tuple[object, ...]:
    """What the code depends on beside its sources."""
    llvm = _llvm()
    features = llvm.get_host_cpu_features().flatten()
    modes = tuple(os.environ.get(mode) for mode in _MODES)
    return llvm.llvm_version_info, llvm.get_process_triple(), llvm.get_host_cpu_name(), features, modes


def _llvm() -> Any:
    import llvmlite.binding as llvm

    with suppress(RuntimeError):  # what newer versions do by themselves
        llvm.initialize()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


# ---- files -----------------------------------------------------------------------------------------------------------


def _folders() -> list[Path]:
    """Where code may be kept, the best first: the folder that numba is told to use, beside the package, the user's cache."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    cache = os.environ.get("XDG_CACHE_HOME")
    found = [Path(chosen)] if chosen else [_PACKAGE / "__pycache__"]
    with suppress(RuntimeError):  # no home
        found.append((Path(cache) if cache else Path.home() / ".cache") / "gpu-trace-advisor")
    return found


def _kept(name: str) -> _Code | None:
    """The code in the first file of a name that is whole."""
    for folder in _folders():
        with suppress(OSError, ValueError):
            head, _, content = (folder / name).read_bytes().partition(b"\n")
            digest, symbol, returns, arguments = head.decode().split()
            code = _Code(symbol, bool(int(returns)), int(arguments), content)
            if digest == _digest(code):
                return code
    return None


def _keep(name: str, code: _Code) -> None:
    """Write the code to the first folder that can be written to; nowhere when none can."""
    head = f"{_digest(code)} {code.symbol} {int(code.returns)} {code.arguments}\n".encode()
    for folder in _folders():
        written = folder / f"{name}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written.write_bytes(head + code.content)
            written.replace(folder / name)
            return
        except OSError:
            with suppress(OSError):
                written.unlink(missing_ok=True)


def _digest(code: _Code) -> str:
    return hashlib.sha256(repr(code[:3]).encode() + code.content).hexdigest()
