"""The 64-bit hash of keys, the sigmoid, and raw memory access for kernels that read Arrow buffers in place.

A key's hash depends only on its bytes, split into parts by `*` and `=`:

    state = SEED;  for each part:  state = combine(state, digest(part), the separator that follows it, or END)

So each value is digested once per row, and every cross with it continues from that state in a few instructions, without
building the cross's text. 0 means "no key".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from model_store.jit import bare_inline, bare_kernel, intrinsic

SEED = np.uint64(0x9E3779B97F4A7C15)
EQUALS = np.uint64(0x3D)
TIMES = np.uint64(0x2A)
END = np.uint64(0)
IS_DIGEST = 9
"""In place of a text's length: its digest is known."""

_WORD = np.uint64(0xFF51AFD7ED558CCD)
_LENGTH = np.uint64(0xC4CEB9FE1A85EC53)
_PART = np.uint64(0xD6E8FEB86659FD93)
_SEPARATOR = np.uint64(0xA0761D6478BD642F)
_EIGHT = np.uint64(8)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_27, _29, _30, _31 = np.uint64(27), np.uint64(29), np.uint64(30), np.uint64(31)
_32 = np.uint64(32)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_PERCENT = np.uint8(0x25)
_STAR = np.uint8(0x2A)
_EQUALS = np.uint8(0x3D)
_NOT_ASCII = np.uint8(0x80)

_TWO_52 = 4503599627370496.0
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93147180369123816490e-01  # its last 32 bits are 0, so products with small integers are exact
_LN2_LOW = 1.90821492927058770002e-10


def _loader(bits: Any, result: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer)
            value.align = 1
            return value

        return result(types.int64), codegen

    return load


load_u8 = _loader(8, types.uint8)
load_i32 = _loader(32, types.int32)
load_u64 = _loader(64, types.uint64)


def _storer(bits: Any, kind: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            builder.store(arguments[1], pointer).align = 1
            return context.get_dummy_value()

        return types.none(types.int64, kind), codegen

    return store


store_u8 = _storer(8, types.uint8)
store_u64 = _storer(64, types.uint64)


def _eight(bits: int) -> Any:
    return ir.VectorType(ir.IntType(bits), 8)


_LONGS, _INTS = _eight(64), _eight(32)


def _all_eight(number: Any) -> Any:
    return ir.Constant(_LONGS, [ir.IntType(64)(int(number))] * 8)


def _load_eight(builder: Any, address: Any, kind: Any = _LONGS) -> Any:
    values = builder.load(builder.inttoptr(address, kind.as_pointer()))
    values.align = 1
    return values


def _store_eight(builder: Any, values: Any, address: Any) -> None:
    builder.store(values, builder.inttoptr(address, _LONGS.as_pointer())).align = 1


def _finish_eight(builder: Any, states: Any) -> Any:
    """What `digest` and `combine` do last with a state and a word, or a part, in it."""
    states = builder.mul(states, _all_eight(_WORD))
    states = builder.xor(states, builder.lshr(states, _all_eight(32)))
    states = builder.mul(states, _all_eight(_PART))
    states = builder.xor(states, builder.lshr(states, _all_eight(29)))
    return builder.select(builder.icmp_unsigned("==", states, _all_eight(0)), _all_eight(1), states)


@intrinsic
def digest_eight(typing_context: Any, words: Any, lengths: Any) -> Any:
    """`digest` of eight texts of at most 8 bytes, 0 where one is empty, in place of their words.

    words: the address of eight uint64, each with a text in its first bytes; where lengths, the address of eight int32,
    is IS_DIGEST, the digest itself.
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given = _load_eight(builder, arguments[0])
        lengths = builder.zext(_load_eight(builder, arguments[1], _INTS), _LONGS)
        unused = builder.sub(_all_eight(64), builder.shl(lengths, _all_eight(3)))
        word = builder.and_(given, builder.lshr(_all_eight(_ALL), unused))
        state = builder.xor(builder.mul(lengths, _all_eight(_LENGTH)), _all_eight(SEED))
        found = _finish_eight(builder, builder.xor(state, word))
        found = builder.select(builder.icmp_unsigned("==", lengths, _all_eight(0)), _all_eight(0), found)
        is_digest = builder.icmp_unsigned("==", lengths, _all_eight(IS_DIGEST))
        _store_eight(builder, builder.select(is_digest, given, found), arguments[0])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def combine_eight(typing_context: Any, states: Any, parts: Any, out: Any) -> Any:
    """`combine` of eight states and the digests of their last parts; the addresses of eight uint64 each, out too."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        states, parts = (_load_eight(builder, address) for address in arguments[:2])
        _store_eight(builder, _finish_eight(builder, builder.xor(states, parts)), arguments[2])
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), codegen


def _test_64_bytes(test: Callable[[Any, Any], Any]) -> Any:
    """An operation that tests 64 bytes at an address at once; nonzero if one passes."""

    @intrinsic
    def any_of_64(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            block = builder.load(builder.inttoptr(arguments[0], _BLOCK.as_pointer()))
            block.align = 1
            return builder.bitcast(test(builder, block), ir.IntType(64))

        return types.int64(types.int64), codegen

    return any_of_64


def _is_special(builder: Any, block: Any) -> Any:
    matches = [builder.icmp_unsigned("==", block, _everywhere(byte)) for byte in b"%*="]
    return builder.or_(builder.or_(matches[0], matches[1]), matches[2])


def _is_not_ascii(builder: Any, block: Any) -> Any:
    return builder.icmp_signed("<", block, _everywhere(0))


def _is_control(builder: Any, block: Any) -> Any:
    return builder.icmp_unsigned("<", block, _everywhere(32))


def _everywhere(byte: int) -> Any:
    return ir.Constant(_BLOCK, [ir.IntType(8)(byte)] * 64)


_BLOCK = ir.VectorType(ir.IntType(8), 64)
special_in_64 = _test_64_bytes(_is_special)
not_ascii_in_64 = _test_64_bytes(_is_not_ascii)
control_in_64 = _test_64_bytes(_is_control)


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the cache line at `address`; never faults."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], byte_pointer)
        signature_ir = ir.FunctionType(ir.VoidType(), [byte_pointer, i32, i32, i32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], signature_ir)
        builder.call(function, [pointer, i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@intrinsic
def float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float64 whose IEEE bits are the int64 `bits`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), codegen


@intrinsic
def bits_of_float(typing_context: Any, number: Any) -> Any:
    """The IEEE bits of a float64, as int64."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), codegen


@bare_inline
def copy_bytes(source: Any, target: Any, length: Any) -> None:
    """Copy bytes between two addresses, eight at once where there are as many; no byte beyond is read or written."""
    at = 0
    while at + 8 <= length:
        store_u64(target + at, load_u64(source + at))
        at += 8
    if at < length and length > 8:
        store_u64(target + length - 8, load_u64(source + length - 8))  # some of these are copied twice
        return
    while at < length:
        store_u8(target + at, load_u8(source + at))
        at += 1


@bare_inline
def mixed(state: Any) -> Any:
    """SplitMix64's finalizer (Steele, Lea & Flood, OOPSLA 2014): every input bit reaches every output bit."""
    state = (state ^ (state >> _30)) * _FIRST
    state = (state ^ (state >> _27)) * _SECOND
    return state ^ (state >> _31)


@bare_inline
def digest(address: Any, length: Any) -> Any:
    """The digest of `length` bytes at `address`; never 0. Two parts of one length up to 8 never collide."""
    state = SEED ^ (np.uint64(length) * _LENGTH)
    end = address + length
    while address + 8 <= end:
        state = (state ^ load_u64(address)) * _WORD
        state ^= state >> _32
        address += 8
    if address < end:
        word, shift = _ZERO, _ZERO
        while address < end:
            word |= np.uint64(load_u8(address)) << shift
            shift += _EIGHT
            address += 1
        state = (state ^ word) * _WORD
        state ^= state >> _32
    state *= _PART
    state ^= state >> _29
    return state if state != _ZERO else _ONE


@bare_inline
def digest_padded(address: Any, length: Any) -> Any:
    """`digest` of at least one byte, after which seven more may be read: the last word is masked, not put together.

    Most texts are one word, for which the processor foresees all branches.
    """
    state = SEED ^ (np.uint64(length) * _LENGTH)
    left = length
    while left > 8:
        state = (state ^ load_u64(address)) * _WORD
        state ^= state >> _32
        address += 8
        left -= 8
    word = load_u64(address) & (_ALL >> np.uint64(64 - 8 * left))
    state = (state ^ word) * _WORD
    state ^= state >> _32
    state *= _PART
    state ^= state >> _29
    return state if state != _ZERO else _ONE


@bare_inline
def combine(state: Any, part: Any, separator: Any) -> Any:
    """Mix a part's digest and the separator that follows it into the state; never 0."""
    state = (state ^ part ^ (separator * _SEPARATOR)) * _WORD
    state ^= state >> _32
    state *= _PART
    state ^= state >> _29
    return state if state != _ZERO else _ONE


@bare_inline
def hash_bytes(address: Any, length: Any) -> Any:
    """The hash of a whole key of `length` bytes at `address`."""
    state = SEED
    start = address
    end = address + length
    while address < end:
        byte = np.uint64(load_u8(address))
        if byte in (EQUALS, TIMES):
            state = combine(state, digest(start, address - start), byte)
            start = address + 1
        address += 1
    return combine(state, digest(start, end - start), END)


@bare_kernel
def content_sums(key_data: Any, key_offsets: Any, weight: Any, variants: Any, rate: Any, out: Any) -> None:
    """Add two hashes of each row of a model to two sums modulo 2^64, which are independent of the rows' order.

    key_data uint8, key_offsets int64[rows + 1]; weight, rate: uint32[rows, width], the bits of their float32; variants
    uint32[rows], rows with 0 are skipped; out: uint64[2], to which the sums are added (`artefact.rows.Content`).
    """
    first, second = out[0], out[1]
    for row in range(variants.size):
        if variants[row] == np.uint32(0):
            continue
        address, length = key_data.ctypes.data + key_offsets[row], key_offsets[row + 1] - key_offsets[row]
        a, b = _row_seeds(address, length, variants[row])
        for v in range(weight.shape[1]):
            word = np.uint64(weight[row, v]) | (np.uint64(rate[row, v]) << _32)
            a, b = mixed(a ^ word), mixed(b + word * _SEPARATOR)
        first += a
        second += b
    out[0], out[1] = first, second


@bare_inline
def _row_seeds(address: Any, length: Any, variants: Any) -> Any:
    """The two hash states of a row's key and variants, to continue with its numbers."""
    word = np.uint64(length) | (np.uint64(variants) << _32)
    a, b = mixed(SEED ^ word), mixed(_LENGTH + word * _SEPARATOR)
    end = address + length
    while address < end:
        word, shift = _ZERO, _ZERO
        if address + 8 <= end:
            word = load_u64(address)
        else:
            for at in range(address, end):
                word |= np.uint64(load_u8(at)) << shift
                shift += _EIGHT
        a, b = mixed(a ^ word), mixed(b + word * _SEPARATOR)
        address += 8
    return a, b


@bare_kernel
def hash_keys(data: Any, offsets: Any, out: Any) -> None:
    """Hash every key of a column: `data` uint8, `offsets` int64[n+1] into it, `out` uint64[n]."""
    for row in range(out.size):
        out[row] = hash_bytes(data.ctypes.data + offsets[row], offsets[row + 1] - offsets[row])


@bare_kernel
def prefix_state(data: Any) -> Any:
    """The state after a prefix that ends in `=` (`age*brand=`), from which its keys' hashes continue."""
    state = SEED
    start = 0
    for position in range(data.size):
        byte = np.uint64(data[position])
        if byte in (EQUALS, TIMES):
            state = combine(state, digest(data.ctypes.data + start, position - start), byte)
            start = position + 1
    return state


@bare_kernel
def digest_columns(data: Any, offsets: Any, rows: Any, whole_keys: Any, out: Any) -> None:
    """Digest text columns in place.

    data, offsets: int64[columns], addresses of each column's bytes and of its int32 offsets (rows + 1 of them);
    whole_keys: uint8[columns], 1 where values are raw keys, to be hashed as whole keys;
    out: uint64[columns, rows], 0 where the value is empty.
    """
    for column in range(out.shape[0]):
        offset_address = offsets[column]
        stop = np.int64(load_i32(offset_address))
        for row in range(rows):
            start = stop
            stop = np.int64(load_i32(offset_address + 4 * (row + 1)))
            if stop == start:
                out[column, row] = _ZERO
            elif whole_keys[column] == 1:
                out[column, row] = hash_bytes(data[column] + start, stop - start)
            else:
                out[column, row] = digest(data[column] + start, stop - start)


@bare_kernel
def scan_columns(data: Any, offsets: Any, sizes: Any, special: Any, not_ascii: Any, longest: Any) -> None:
    """Scan the bytes of text columns once.

    data, offsets: int64[columns] as for `digest_columns`; sizes: int64[columns], values in each;
    special, not_ascii: uint8[columns] out, 1 where a byte must be escaped or UTF-8 must be checked;
    longest: int64[columns] out, length of the longest value in bytes.
    """
    for column in range(data.size):
        if sizes[column] == 0:
            continue
        first = np.int64(load_i32(offsets[column]))
        start, longest_here = first, np.int64(0)
        for value in range(sizes[column]):
            stop = np.int64(load_i32(offsets[column] + 4 * (value + 1)))
            longest_here = max(longest_here, stop - start)
            start = stop
        longest[column] = longest_here
        address, end = data[column] + first, data[column] + start
        escape, high = np.int64(0), np.int64(0)
        while address + 64 <= end:
            escape |= special_in_64(address)
            high |= not_ascii_in_64(address)
            address += 64
        while address < end:
            byte = load_u8(address)
            escape |= np.int64(byte in (_PERCENT, _STAR, _EQUALS))
            high |= np.int64(byte >= _NOT_ASCII)
            address += 1
        special[column] = np.uint8(escape != 0)
        not_ascii[column] = np.uint8(high != 0)


@bare_inline
def exponential(number: Any) -> Any:
    """exp(number) of a number that is not positive, within 2 units in the last place; below -708 it is exp(-708).

    It uses only IEEE additions and multiplications, so every machine computes the same bits (a libm's exp does not
    guarantee that), and LLVM can vectorize it over variants.
    """
    argument = max(number, -708.0)
    octaves = np.floor(argument * _LOG2_E + 0.5)
    rest = (argument - octaves * _LN2_HIGH) - octaves * _LN2_LOW
    series = 1.0 / 6227020800.0
    series = series * rest + 1.0 / 479001600.0
    series = series * rest + 1.0 / 39916800.0
    series = series * rest + 1.0 / 3628800.0
    series = series * rest + 1.0 / 362880.0
    series = series * rest + 1.0 / 40320.0
    series = series * rest + 1.0 / 5040.0
    series = series * rest + 1.0 / 720.0
    series = series * rest + 1.0 / 120.0
    series = series * rest + 1.0 / 24.0
    series = series * rest + 1.0 / 6.0
    series = series * rest + 0.5
    series = series * rest + 1.0
    series = series * rest + 1.0
    # The exponent is the low bits of a float: processors without AVX-512 cannot convert several floats at once.
    return series * float_of_bits(bits_of_float(octaves + (_TWO_52 + 1023.0)) << 52)


@bare_inline
def sigmoid(score: Any) -> Any:
    """1 / (1 + exp(-score)), within 2 units in the last place, the same bits on every machine."""
    tail = exponential(-abs(score))
    return (1.0 if score >= 0.0 else tail) / (1.0 + tail)
