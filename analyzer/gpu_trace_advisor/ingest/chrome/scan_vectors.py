"""What numba does not offer a parser: eight bytes read at once, and 32 compared at once."""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, kind: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(builder.bitcast(data, _I8.as_pointer()), [index]), kind.as_pointer())


def _type_load8(_typing: Any, array: Any, index: Any) -> Any:
    """Eight bytes from an index on, little end first."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], _I64), align=1)

    return types.uint64(array, types.int64), code


def _vector_mask(builder: Any, vector: Any, bytes_: tuple[int, ...], fold: int) -> Any:
    """Bit i set where byte i, or'ed with `fold`, is one of the bytes."""
    kind = vector.type

    def splat(byte: int) -> Any:
        return ir.Constant(kind, [byte] * 32)

    folded = builder.or_(vector, splat(fold)) if fold else vector
    hit = None
    for byte in bytes_:
        same = builder.icmp_unsigned("==", folded, splat(byte))
        hit = same if hit is None else builder.or_(hit, same)
    return hit


def _type_quotes(_typing: Any, array: Any, index: Any) -> Any:
    """Bit i set where byte index + i is a quote or a backslash, for 32 bytes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(_I8, 32)
        vector = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], kind), align=1)
        return builder.zext(builder.bitcast(_vector_mask(builder, vector, (0x22, 0x5C), 0), _I32), _I64)

    return types.int64(array, types.int64), code


def _type_structure(_typing: Any, array: Any, index: Any) -> Any:
    """Bit i set where byte index + i is a quote, a bracket or a brace, for 32 bytes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(_I8, 32)
        vector = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], kind), align=1)
        quote = _vector_mask(builder, vector, (0x22,), 0)
        brackets = _vector_mask(builder, vector, (0x7B, 0x7D), 0x20)
        return builder.zext(builder.bitcast(builder.or_(quote, brackets), _I32), _I64)

    return types.int64(array, types.int64), code


def _type_spaces(_typing: Any, array: Any, index: Any) -> Any:
    """Bit i set where byte index + i is white space, for 32 bytes."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.VectorType(_I8, 32)
        vector = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], kind), align=1)
        mask = _vector_mask(builder, vector, (0x20, 0x0A, 0x0D, 0x09), 0)
        return builder.zext(builder.bitcast(mask, _I32), _I64)

    return types.int64(array, types.int64), code


def _type_lowest_bit(_typing: Any, word: Any) -> Any:
    """The number of the lowest bit that is set; the word is not 0."""

    def code(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), code


load8: Any = intrinsic(_type_load8)
quotes: Any = intrinsic(_type_quotes)
structure: Any = intrinsic(_type_structure)
spaces: Any = intrinsic(_type_spaces)
lowest_bit: Any = intrinsic(_type_lowest_bit)
