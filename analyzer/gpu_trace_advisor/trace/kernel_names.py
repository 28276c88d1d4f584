"""What a device operation is, from its name: communication, kind of copy, class of kernel, a name people can read."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path

from gpu_trace_advisor.runtime.classes import dataclass

_NAMES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
COMMUNICATION = re.compile("|".join(entry["pattern"] for entry in _NAMES["communication"]))
CLASSES = (
    ("communication", COMMUNICATION),
    *((entry["class"], re.compile(entry["pattern"])) for entry in _NAMES["classes"]),
)
"""The first that is found in a name in lower case decides."""
OTHER = "other"
CLASS_NAMES = (*dict.fromkeys(name for name, _ in CLASSES), OTHER)

COPY_NAME = re.compile(
    r"mem(?:cpy|set)\s*(?P<direction>\w+)?\s*(?:\((?P<from>[\w ]+?)\s*->\s*(?P<to>[\w ]+?)\))?", re.IGNORECASE
)
DIRECTIONS = ("HtoD", "DtoH", "PtoP", "DtoD", "unknown direction")
_SPELLINGS = (
    ("HtoD", re.compile(r"htod|hosttodevice|host_to_device|h2d", re.IGNORECASE)),
    ("DtoH", re.compile(r"dtoh|devicetohost|device_to_host|d2h", re.IGNORECASE)),
    ("PtoP", re.compile(r"ptop|peertopeer|peer|p2p", re.IGNORECASE)),
    ("DtoD", re.compile(r"dtod|devicetodevice|device_to_device|d2d|device -> device", re.IGNORECASE)),
)


def is_communication(name: str) -> bool:
    """A kernel of a collective or peer transfer, by its name."""
    if COMMUNICATION.search(name.lower()):
        return True
    return name.startswith("_Z") and COMMUNICATION.search(_demangled(name).lower()) is not None


def is_migration(name: str) -> bool:
    """Pages of managed memory that moved because they were touched or prefetched, as Nsight Systems lists them."""
    return name.endswith("(Unified)")


@lru_cache(maxsize=100_000)
def computes_integers(name: str) -> bool:
    """A kernel template whose arguments name a type of whole numbers and none of fractions: counters, indices, masks."""
    arguments = _Signature.parse(name).arguments
    return _WHOLE.search(arguments) is not None and _FRACTIONS.search(arguments) is None


_WHOLE = re.compile(r"\b(?:long|int64_t)\b")
_FRACTIONS = re.compile(r"float|double|half|bfloat|complex|\bbf16|\bfp\d+", re.IGNORECASE)


def copy_direction(name: str) -> str:
    """One of DIRECTIONS, the last one for a copy whose name does not say."""
    return next((direction for direction, spelling in _SPELLINGS if spelling.search(name)), DIRECTIONS[-1])


def copy_memory(name: str) -> str:
    """`pageable` or `pinned`, of the host's side of a copy; nothing when the name does not tell (ROCm)."""
    lower = name.lower()
    return "pageable" if "pageable" in lower else "pinned" if "pinned" in lower else ""


@lru_cache(maxsize=100_000)
def kernel_class(name: str) -> str:
    """The kernel's class by its name, `other` when it has none of the known words."""
    if is_communication(name):
        return "communication"
    qualified = _Signature.parse(name).qualified
    return _class_of(_meaning(name)) or _class_of(_LIBRARY.sub("", qualified)) or OTHER


def _class_of(text: str) -> str | None:
    text = text.lower()
    return next((cls for cls, pattern in CLASSES if pattern.search(text)), None)


_LIBRARY = re.compile(r"(?:at::native|fbgemm_gpu|c10|vllm|aiter|cudnn)::")


@lru_cache(maxsize=100_000)
def readable(name: str, width: int = 60) -> str:
    """A kernel name without templates, namespaces and argument lists, at most `width` characters.

    What an elementwise, reduction or multi-tensor kernel computes is its meaning: `vectorized_elementwise[add]`.
    A wrapper that says nothing gives way to what it wraps: `cutlass::Kernel<cutlass_80_…>` is `cutlass_80_…`.
    """
    text = _meaning(name)
    return text if len(text) <= width else text[: width - 1] + "…"


@lru_cache(maxsize=100_000)
def _meaning(name: str) -> str:
    text = " ".join(name.split())
    if COPY_NAME.match(text):
        return text.split("(")[0].strip()
    if tile := _TENSILE.match(text):
        return f"{tile['problem']} {tile['tile']}"
    signature = _Signature.parse(text)
    base = signature.base
    if base in _WRAPPERS:
        base = _wrapped(signature)
    elif _FAMILIES.search(base) and (functor := _functor(signature.arguments)):
        return f"{_without_suffix(base)}[{functor}]"
    return _without_suffix(base)


def _without_suffix(base: str) -> str:
    return re.sub(r"_kernel$", "", base) or base


_TENSILE = re.compile(r"(?P<problem>Cijk_[A-Za-z]+_[A-Za-z]+_[A-Z0-9]+(?:_BH|_HH)?)_.*?(?P<tile>MT\d+x\d+x\d+)")
_WRAPPERS = frozenset(
    ("kernel", "Kernel", "Kernel2", "kernel2", "device_kernel", "kentry", "kernel_entry", "trampoline_kernel")
)
_FAMILIES = re.compile(r"elementwise|reduce_kernel|multi_tensor_apply|unrolled|foreach|^index_|distribution")
_SAYS_LITTLE = re.compile(
    r"void|const|true|false|unsigned|signed|bool|char|short|int|long|half|__half\d?|Half|float\d?|double\d?|BFloat16"
    r"|lambda|instance|operator|detail|std|cute|default_config|[Aa]rray|OpaqueType|TensorListMetadata|TensorIterator\w*"
    r"|enable_\w*|cublas\w*|\w*(?:Param|Config|Traits|Argument|Shape|Problem|Policy|bfloat16|OffsetCalculator)\w*|T\d*|\d\w*"
)


def _wrapped(signature: _Signature) -> str:
    """What a wrapper kernel wraps: the first telling type of its template arguments, else its namespace says it."""
    return _first_type(signature.arguments) or "::".join(signature.qualified.split("::")[-2:])


def _first_type(arguments: str) -> str:
    """The first name in template arguments that is no namespace and no everyday type; empty when there is none."""
    names = re.finditer(r"(?<!\w)[A-Za-z_]\w*(?!\w|::)", arguments)
    return next((found[0] for found in names if not _SAYS_LITTLE.fullmatch(found[0])), "")


_FUNCTOR = re.compile(
    r"(?<!\w)\w*(?:[Ff]unctor|Ops|_kernel_cuda|_cuda_kernel|_kernel_impl|_kernel)(?:OnSelf|OnOther)?(?:_[a-z]\w*)?\b"
)
_AROUND = re.compile(r"gpu_|opmath_|launch_|[ABU]+naryFunctor|BinaryFunctor|OpMathFunctor|func_wrapper|\w*jitted_")
_DECORATION = re.compile(
    r"^CUDAFunctor(?:OnSelf|OnOther)?_|^launch_|CUDAKernelImpl$|_cuda_out$|_?[Ff]unctor$|Ops$"
    r"|(?:_kernel|_cuda|_impl|_nocast|_gpu)+$"
)
_PLAIN = {"plus": "add", "multiplies": "mul", "minus": "sub", "divides": "div"}


def _functor(arguments: str) -> str:
    """What a kernel template computes, by the functor among its arguments; empty when none is named."""
    for found in _FUNCTOR.finditer(arguments):
        if _AROUND.match(found[0]):
            continue
        if "OpList" in found[0] or "OpScalar" in found[0]:
            operation = re.search(r"std::(plus|multiplies|minus|divides)\b", arguments)
            if operation:
                return _PLAIN[operation[1]]
        if functor := _undecorated(found[0]):
            return functor
    return _undecorated(_first_type(arguments))


def _undecorated(functor: str) -> str:
    plain = _DECORATION.sub("", _DECORATION.sub("", functor))
    return plain.lower() if plain.istitle() else plain


@dataclass(frozen=True)
class _Signature:
    """The parts of a C++ function's name."""

    qualified: str
    """With its namespaces, without template arguments: `at::native::reduce_kernel`."""
    arguments: str
    """The text of its template arguments."""

    @property
    def base(self) -> str:
        return self.qualified.rsplit("::", 1)[-1]

    @staticmethod
    def parse(name: str) -> _Signature:
        """Names that are no C++ signature are kept whole; unbalanced ones (cut off) as far as they go."""
        text = _ANONYMOUS.sub("", _demangled(name.strip()))
        outside = ""
        open_: list[str] = []
        first = end = len(text)
        behind = 0  # the last stretch of text that is within brackets
        for bracket in _BRACKETS.finditer(text):
            place, character = bracket.start(), bracket[0]
            if character in _CLOSES:
                if not open_:
                    outside += text[behind:place]
                    if character == "(" and outside and outside[-1] != " ":
                        end = behind = place
                        break
                    if " " in text[behind:place]:  # what came before was the type that it returns
                        first = place
                first = min(first, place)
                open_.append(_CLOSES[character])
            elif open_ and character == open_[-1] and text[place - 1 : place + 1] != "->":
                open_.pop()
                behind = place + 1
        plain = (outside if open_ else outside + text[behind:end]).strip()
        words = plain.split()
        if not words or (len(words) > 1 and words[0] != "void" and "<" not in text and "::" not in text):
            return _Signature(text, "")
        return _Signature(words[-1].strip(":") or text, text[first:end])


_ANONYMOUS = re.compile(r"\(anonymous (?:namespace|class)\)::|<unnamed>::|\{anonymous\}::|_GLOBAL__N_\w*::|\.kd$")
_CLOSES = {"<": ">", "(": ")", "[": "]", "{": "}"}
_BRACKETS = re.compile(r"[<>()\[\]{}]")


def _demangled(name: str) -> str:
    """The names in an Itanium-mangled one (`_ZN…`), in a form that reads like a signature; others as they are."""
    if not name.startswith("_Z"):
        return name
    path, rest = _identifiers(re.sub(r"^_ZN?K?", "", name), only_leading=True)
    if not path:
        return name
    inner, _ = _identifiers(re.sub(r"L[a-z]n?\d+E", "", rest), only_leading=False) if rest.startswith("I") else ([], "")
    path = [part for part in path if not part.startswith("_GLOBAL__N_")] or path
    return "::".join(path) + (f"<{', '.join(inner)}>" if inner else "")


def _identifiers(text: str, *, only_leading: bool) -> tuple[list[str], str]:
    """Length-prefixed identifiers, and what follows the last of them."""
    found, place = [], 0
    while place < len(text):
        digits = re.compile(r"\d+").match(text, place)
        if digits:
            end = digits.end() + int(digits[0][:6])
            if digits[0] == "0" or end > len(text):
                break
            found.append(text[digits.end() : end])
            place = end
        elif only_leading:
            break
        else:
            place += 1
    return found, text[place:]
