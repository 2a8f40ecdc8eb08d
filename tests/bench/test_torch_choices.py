"""benchmarks/torch_choices.py: what is chosen for, and that what several processes chose is kept."""

from __future__ import annotations

import onnx
import pytest
from burnish.commands.peers.torch_graph import torch_module
from burnish.models import zoo

from .scripts import script

try:
    import torch
except ImportError:
    torch = None

CHOICES = script("torch_choices")


def test_choices_of_all_processes_are_kept():
    first = {"convolution": {"a": {"highest": {"one": 1.0}}, "b": {"highest": {"one": 2.0}}}}
    second = {"convolution": {"a": {"high": {"one": 3.0}, "highest": {"one": 4.0}}}, "mm": {}}
    assert CHOICES.merged(first, second) == {
        "convolution": {"a": {"high": {"one": 3.0}, "highest": {"one": 4.0}}, "b": {"highest": {"one": 2.0}}},
        "mm": {},
    }


def test_without_a_folder_nothing_is_chosen(monkeypatch, capsys):
    monkeypatch.delenv(CHOICES.FOLDER, raising=False)
    with pytest.raises(SystemExit) as ended:
        CHOICES.main(["dqn"])
    assert ended.value.code == 2 and CHOICES.FOLDER in capsys.readouterr().err


def test_an_unknown_precision_is_refused(monkeypatch, capsys):
    monkeypatch.setenv(CHOICES.FOLDER, "choices")
    with pytest.raises(SystemExit) as ended:
        CHOICES.main(["dqn", "--precision", "f32,bf16"])
    assert ended.value.code == 2 and "'bf16': expected of f32, tf32" in capsys.readouterr().err


def inputs_of(model: onnx.ModelProto):
    return [torch.from_numpy(x) for x in zoo.random_inputs(model, 0).values()]


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_each_product_alone_computes_what_it_does_in_its_network():
    model = zoo.build("dqn")
    module = torch_module(model)
    seen = []

    class Recorder(torch.fx.Interpreter):
        def call_function(self, target, args, kwargs):
            result = super().call_function(target, args, kwargs)
            if target.__name__ in CHOICES.PRODUCTS:
                seen.append((args[0], result))
            return result

    Recorder(module).run(*inputs_of(model))
    found = CHOICES.products(module, inputs_of(model)).values()
    for (piece, shapes), (given, result) in zip(found, seen, strict=True):
        assert shapes == [tuple(given.shape)]
        torch.testing.assert_close(piece(given), (result,))


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_products_of_the_same_shapes_are_chosen_for_once():
    model = zoo.build("resnet18")
    found = CHOICES.products(torch_module(model), inputs_of(model))
    assert len(found) == 12  # of 20 convolutions and a product of matrices
