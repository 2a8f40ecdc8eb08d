"""Data types, layouts and tensor types."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from burnish.compiler.ir.types import BF16, DTYPES, F32, Layout, TensorType, dtype_by_code, dtype_of
from burnish.errors import InternalError
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto


@st.composite
def shapes_and_layouts(draw):
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.lists(st.integers(0, 7), min_size=rank, max_size=rank)))
    order = tuple(draw(st.permutations(range(rank))))
    axis = st.integers(0, rank - 1)
    blocks = tuple(draw(st.lists(st.tuples(axis, st.sampled_from([2, 3, 4])), max_size=3)))
    return shape, Layout(order, blocks)


def physical_index(layout: Layout, index: tuple[int, ...]) -> tuple[int, ...]:
    """Where one element lies: the definition of the notation, one axis at a time."""
    rest = list(index)
    inner: list[int] = []
    for axis, factor in reversed(layout.blocks):
        inner.insert(0, rest[axis] % factor)
        rest[axis] //= factor
    return (*(rest[axis] for axis in layout.order), *inner)


@settings(max_examples=60, deadline=None)
@given(shapes_and_layouts())
def test_pack_places_every_element_and_unpack_inverts_it(case):
    shape, layout = case
    array = np.arange(1, np.prod(shape, dtype=int) + 1, dtype=np.int32).reshape(shape)
    packed = layout.pack(array)
    expected = np.zeros(layout.physical_shape(shape), np.int32)
    for index in itertools.product(*map(range, shape)):
        expected[physical_index(layout, index)] = array[index]
    np.testing.assert_array_equal(packed, expected)
    np.testing.assert_array_equal(layout.unpack(packed, shape), array)


@settings(max_examples=60, deadline=None)
@given(shapes_and_layouts())
def test_layout_text(case):
    _, layout = case
    assert Layout.parse(str(layout)) == layout


def test_channel_blocked_is_the_usual_notation():
    layout = Layout.channel_blocked(4, 16)
    assert str(layout) == "aBcd16b"
    assert layout.physical_shape((1, 20, 5, 6)) == (1, 2, 5, 6, 16)
    assert layout.block_of(1) == 16 and layout.block_of(0) == 1
    assert not layout.is_plain and Layout.plain(4).is_plain


@pytest.mark.parametrize(
    "text", ["f32[1,64,56,56]:aBcd16b", "bf16[]", "i64[batch,3]", "bool[0]", "f32[2,3]:ba"]
)
def test_tensor_type_text(text):
    assert str(TensorType.parse(text)) == text


@pytest.mark.parametrize("text", ["f33[1]", "f32", "f32[1]:16b!", "f32(1)"])
def test_tensor_type_text_that_is_none(text):
    with pytest.raises(InternalError, match="expected"):
        TensorType.parse(text)


def test_tensor_type_sizes():
    type = TensorType.parse("f32[1,20,5,6]:aBcd16b")
    assert type.size == 600
    assert type.nbytes == 2 * 5 * 6 * 16 * 4
    assert type.with_layout(None).physical_shape == (1, 20, 5, 6)
    with pytest.raises(InternalError, match="symbolic"):
        TensorType(F32, ("batch", 3)).dims  # noqa: B018


def test_dtypes_carry_onnx_numbers():
    onnx_names = {"f32": "FLOAT", "f64": "DOUBLE", "f16": "FLOAT16", "bf16": "BFLOAT16", "bool": "BOOL"}
    for name, dtype in DTYPES.items():
        number = name.replace("u", "UINT") if name[0] == "u" else name.replace("i", "INT")
        assert dtype.code == TensorProto.DataType.Value(onnx_names.get(name, number))
        assert dtype_of(np.zeros(2, dtype.numpy)) is dtype and dtype_by_code(dtype.code) is dtype
        assert dtype.bytes == dtype.numpy.itemsize
    assert BF16.is_float and not BF16.is_integer
