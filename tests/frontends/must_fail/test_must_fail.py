from __future__ import annotations

import tracemalloc

import pytest
from burnish.frontends.onnx.importer import import_onnx

from .models import CASES


@pytest.mark.parametrize("name", CASES)
def test_is_refused_in_one_line(name):
    source, options, error, parts = CASES[name]
    with pytest.raises(error) as caught:
        import_onnx(source, **options)
    message = str(caught.value)
    assert parts, "what the message has to name"
    assert type(caught.value) is error
    assert "\n" not in message and all(part in message for part in parts), message
    assert caught.value.__cause__ is None, f"not refused on purpose: {message}"


@pytest.mark.parametrize("name", [name for name in CASES if "elements" in name])
def test_is_refused_before_memory_is_taken(name):
    source, options, error, _ = CASES[name]
    tracemalloc.start()
    try:
        with pytest.raises(error):
            import_onnx(source, **options)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
