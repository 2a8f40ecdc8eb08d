"""`torch.compile(model, backend="burnish")` against torch itself."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from burnish import torch_backend
from burnish.errors import InputError, UnsupportedError

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Net(torch.nn.Module):
    """Two outputs, a buffer, and an input that is added."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 5)
        self.register_buffer("shift", torch.arange(5.0))

    def forward(self, x, more):
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        scores = self.linear(x) + self.shift + more
        return scores, scores.argmax(1)


@pytest.fixture
def net():
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Net().eval()


@pytest.fixture
def compiled(net):
    return torch.compile(net, backend=torch_backend.backend, options={"threads": 1})


def agree(net, compiled, batch: int) -> None:
    x, more = torch.randn(batch, 3, 9, 7), torch.randn(5)
    for found, expected in zip(compiled(x, more), net(x, more), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_shapes_and_weights_that_change(net, compiled, monkeypatch):
    count = 0

    def counting(*arguments, **options):
        nonlocal count
        count += 1
        return compile_model(*arguments, **options)

    compile_model = torch_backend.compile_model
    monkeypatch.setattr(torch_backend, "compile_model", counting)
    with torch.no_grad():
        agree(net, compiled, 2)
        agree(net, compiled, 2)
        assert count == 1
        net.linear.weight.mul_(2)
        agree(net, compiled, 2)
        assert count == 2
        net.shift.add_(1)
        agree(net, compiled, 2)
        assert count == 3
        agree(net, compiled, 3)
        agree(net, compiled, 4)
        assert count == 5
        for _ in range(3):  # which may come to lie where others lay
            net.linear.weight.data = torch.randn(5, 8)
            agree(net, compiled, 4)
        assert count == 8
    with torch.inference_mode():
        agree(net, compiled, 2)


def test_what_wants_gradients_is_torchs_own(net, compiled):
    x = torch.randn(2, 3, 9, 7)
    with pytest.warns(UserWarning, match=r"torch itself runs what wants gradients"):
        scores, _ = compiled(x, torch.zeros(5))
    scores.sum().backward()
    assert net.conv.weight.grad is not None


def test_training_is_refused(net, compiled):
    net.train()
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"in place.*call model.eval\(\)"):
        compiled(torch.randn(2, 3, 9, 7), torch.zeros(5))


def test_results_that_are_numbers():
    torch._dynamo.reset()
    double = torch.compile(lambda x: (x.shape[0] * 2, x * 2, None), backend=torch_backend.backend)
    for batch in (2, 3, 4):
        x = torch.randn(batch, 3)
        count, result, nothing = double(x)
        assert count == 2 * batch and nothing is None
        torch.testing.assert_close(result, 2 * x)


def test_options_are_those_of_compile(net):
    model = torch.compile(net, backend=torch_backend.backend, options={"plan": "lunch"})
    with torch.no_grad(), pytest.raises(InputError, match="plan 'lunch'"):
        model(torch.randn(2, 3, 9, 7), torch.zeros(5))


def test_torch_finds_it_by_name():
    (entry,) = (e for e in entry_points(group="torch_dynamo_backends") if e.name == "burnish")
    assert entry.load() is torch_backend.backend
    assert "burnish" in torch._dynamo.list_backends()
