"""Trains `digits` with numpy alone and writes digits.onnx: python -m burnish.models.train_digits

Network: 3×3 convolutions 1→16→32→64, each with ReLU, 2×2 max pooling after the second and third, a dense
layer to 10 classes. Adam (Kingma and Ba 2014) on the cross entropy, images shifted by up to one pixel.
It takes a minute at most.
"""

from __future__ import annotations

import numpy as np
import onnx

from .digits import WEIGHTS, digits_network, split

Weights = dict[str, np.ndarray]
_SHAPES = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "conv3": (64, 32, 3, 3), "fc": (10, 256)}
_EPOCHS, _BATCH, _RATE = 30, 32, 2e-3


def initial_weights(rng: np.random.Generator) -> Weights:
    weights: Weights = {}
    for name, shape in _SHAPES.items():
        std = (2.0 / np.prod(shape[1:])) ** 0.5
        weights[f"{name}.weight"] = rng.standard_normal(shape, np.float32) * np.float32(std)
        weights[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return weights


def patches(x: np.ndarray) -> np.ndarray:
    """(n, c, h, w) → (n, h, w, c·9): the zero-padded 3×3 neighbourhood of each pixel."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    n, c, h, w = x.shape
    return windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


def unpatches(g: np.ndarray, channels: int) -> np.ndarray:
    """The transpose of `patches`: adds each neighbourhood's gradient to its pixels."""
    n, h, w, _ = g.shape
    g = g.reshape(n, h, w, channels, 3, 3).transpose(0, 3, 4, 5, 1, 2)
    x = np.zeros((n, channels, h + 2, w + 2), np.float32)
    for i in range(3):
        for j in range(3):
            x[:, :, i : i + h, j : j + w] += g[:, :, i, j]
    return x[:, :, 1:-1, 1:-1]


def loss_and_gradients(weights: Weights, images: np.ndarray, labels: np.ndarray) -> tuple[float, Weights]:
    """Mean cross entropy over images (n, 1, 8, 8), and its gradient by every weight."""
    x, tape, n = images, [], len(images)
    for name in ("conv1", "conv2", "conv3"):
        columns = patches(x)
        kernel = weights[f"{name}.weight"]
        y = np.maximum(columns @ kernel.reshape(len(kernel), -1).T + weights[f"{name}.bias"], 0)
        y = y.transpose(0, 3, 1, 2)
        x = y if name == "conv1" else pooled(y)
        tape.append((name, columns, y, x))
    flat = x.reshape(n, -1)
    logits = flat @ weights["fc.weight"].T + weights["fc.bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    loss = float(-np.log(p[np.arange(n), labels] + 1e-12).mean())
    p[np.arange(n), labels] -= 1
    p /= n
    gradients = {"fc.weight": p.T @ flat, "fc.bias": p.sum(0)}
    g = (p @ weights["fc.weight"]).reshape(x.shape)
    for name, columns, y, out in reversed(tape):
        g = g if out is y else unpooled(g, y, out)
        g = (g * (y > 0)).transpose(0, 2, 3, 1)
        kernel = weights[f"{name}.weight"]
        rows = g.reshape(-1, len(kernel))
        gradients[f"{name}.weight"] = (rows.T @ columns.reshape(len(rows), -1)).reshape(kernel.shape)
        gradients[f"{name}.bias"] = rows.sum(0)
        if name != "conv1":
            g = unpatches(g @ kernel.reshape(len(kernel), -1), kernel.shape[1])
    return loss, gradients


def pooled(y: np.ndarray) -> np.ndarray:
    n, c, h, w = y.shape
    return y.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))


def unpooled(g: np.ndarray, y: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Gradient of `pooled`; equal maxima all receive it."""
    spread = np.ones((1, 1, 2, 2), np.float32)
    return np.kron(g, spread) * (y == np.kron(out, spread))


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    offsets = rng.integers(0, 3, (len(images), 2))
    return np.stack([image[:, i : i + 8, j : j + 8] for image, (i, j) in zip(padded, offsets)])


def train(seed: int = 0, epochs: int = _EPOCHS) -> Weights:
    """Weights after `epochs` passes over the training digits; prints each epoch's mean loss."""
    rng = np.random.default_rng(seed)
    data, weights = split()[0], initial_weights(rng)
    first = {name: np.zeros_like(w) for name, w in weights.items()}
    second = {name: np.zeros_like(w) for name, w in weights.items()}
    step = 0
    total = epochs * -(-len(data.labels) // _BATCH)
    for epoch in range(epochs):
        order, losses = rng.permutation(len(data.labels)), []
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            loss, gradients = loss_and_gradients(
                weights, shifted(data.images[chosen], rng), data.labels[chosen]
            )
            losses.append(loss)
            rate = _RATE * 0.5 * (1 + np.cos(np.pi * step / total))
            step += 1
            for name, g in gradients.items():
                first[name] = 0.9 * first[name] + 0.1 * g
                second[name] = 0.999 * second[name] + 0.001 * g * g
                mean, power = first[name] / (1 - 0.9**step), second[name] / (1 - 0.999**step)
                weights[name] = (weights[name] - rate * mean / (np.sqrt(power) + 1e-8)).astype(np.float32)
        print(f"epoch {epoch + 1:2d}  loss {np.mean(losses):.4f}", flush=True)
    return weights


if __name__ == "__main__":
    onnx.save(digits_network(train()), WEIGHTS)
    print(f"wrote {WEIGHTS.name}")
