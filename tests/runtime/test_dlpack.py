"""DLPack in both directions, against numpy's and torch's own implementations."""

from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from burnish.errors import InputError
from burnish.runtime.arrays import DTYPES, TensorInfo, as_array
from burnish.runtime.dlpack import HOST, borrow, lend

NAMES = [(name, dtype) for name, dtype in DTYPES.values() if name != "bf16"]


def info(name: str, dtype: np.dtype, shape: tuple[int, ...]) -> TensorInfo:
    return TensorInfo("x", dtype, name, shape, int(np.prod(shape)) * dtype.itemsize)


class Lender:
    """Lends memory of the host as Burnish lends that of a GPU."""

    def __init__(self, array: np.ndarray, name: str):
        self.array, self.name = array, name

    def __dlpack_device__(self):
        return HOST, 0

    def __dlpack__(self, **_):
        array = self.array
        return lend(array.ctypes.data, self.name, 8 * array.itemsize, array.shape, HOST, array)


class Borrower:
    def __init__(self, capsule, device):
        self.capsule, self.device = capsule, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        return self.capsule


@pytest.mark.parametrize(("name", "dtype"), NAMES)
@pytest.mark.parametrize("shape", [(), (7,), (2, 3, 5), (0, 3)])
def test_both_directions_agree_with_numpy(name, dtype, shape):
    x = (np.arange(np.prod(shape)) % 2).reshape(shape).astype(dtype)
    np.testing.assert_array_equal(np.from_dlpack(Lender(x, name)), x)
    y = as_array("input", info(name, dtype, shape), Borrower(x.__dlpack__(), x.__dlpack_device__()))
    np.testing.assert_array_equal(y, x)
    assert y.dtype == dtype


def test_memory_is_shared_and_lives_as_long_as_it_is_lent():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    gone = weakref.ref(x)
    lender = Lender(x, "f32")
    y = np.from_dlpack(lender)
    unused = lender.__dlpack__()
    address = x.ctypes.data
    del x, lender
    assert y.ctypes.data == address and gone() is not None
    del y, unused
    gc.collect()
    assert gone() is None


def test_a_loan_ends_with_the_last_array_of_it():
    x = np.arange(6, dtype=np.float32)
    gone = weakref.ref(x)
    y = as_array("input", info("f32", x.dtype, (6,)), Borrower(x.__dlpack__(), (HOST, 0)))[2:]
    del x
    gc.collect()
    assert gone() is not None and y[0] == 2
    del y
    gc.collect()
    assert gone() is None


def test_tensors_of_torch():
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    y = as_array("output", info("f32", np.dtype(np.float32), (2, 3)), x)
    y[1, 2] = 9
    assert x[1, 2] == 9
    transposed = as_array("input", info("f32", np.dtype(np.float32), (3, 2)), x.T)
    np.testing.assert_array_equal(transposed, y.T)
    narrow = as_array("input", info("bf16", np.dtype(ml_dtypes.bfloat16), (2, 3)), x.to(torch.bfloat16))
    np.testing.assert_array_equal(narrow.astype(np.float32), y)
    with pytest.raises(InputError, match="'x': cannot be taken by DLPack"):
        as_array("input", info("f32", np.dtype(np.float32), (2, 3)), x.requires_grad_())


def test_torch_takes_what_is_lent():
    torch = pytest.importorskip("torch")
    x = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    y = torch.from_dlpack(Lender(x, "bf16"))
    assert y.dtype == torch.bfloat16 and y.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((1, 3), (99, 1), True), ((0, 3), (5, 5), True)],
)
def test_contiguous(shape, strides, contiguous):
    base = np.zeros(32, np.float32)
    x = np.lib.stride_tricks.as_strided(base, shape, tuple(4 * s for s in strides))
    lent = borrow(x)
    assert lent.shape == shape and lent.contiguous is contiguous


def test_other_devices_and_dtypes_are_named():
    x = np.zeros(3, np.complex64)
    with pytest.raises(InputError, match=r"x: f32\[3\] in memory of the host .* found another dtype"):
        as_array("input", info("f32", np.dtype(np.float32), (3,)), Borrower(x.__dlpack__(), (HOST, 0)))
    y = np.zeros(3, np.float32)
    with pytest.raises(InputError, match="found f32 on a device of DLPack's kind 10"):
        as_array("input", info("f32", y.dtype, (3,)), Borrower(y.__dlpack__(), (10, 0)))
