"""The template's own numbers."""

from dataclasses import replace

import pytest
from burnish.compiler.kernel_task import DefaultConfig, FixedConfig, RejectedConfig
from burnish.compiler.target import KIB, MIB, get_target
from burnish.compiler.templates.winograd import params

from ..compiled.test_winograd import Shape, convolution, task_for


@pytest.mark.parametrize(("l2", "fused"), [(2 * MIB, False), (4 * MIB, True)])
def test_tiles_of_a_whole_image_are_made_at_once_where_l2_holds_them_and_not_the_weights(l2, fused):
    """V takes 1.6 MB, the weights as much, a task's rows of tiles 0.7 MB."""
    task = task_for(convolution("polyphase3", Shape(1, 64, 128, 56, 56)), "polyphase3", "x86-64-v4")
    task = replace(task, target=replace(get_target("x86-64-v4"), l1=48 * KIB, l2=l2), threads=1)
    assert params(task, DefaultConfig()).fused is fused


@pytest.mark.parametrize("algorithm", ["winograd4", "winograd2_5x5"])
def test_no_sum_is_longer_than_its_bound_allows(algorithm):
    """1,024 products one after the other round by more than 4e-6 of the largest output."""
    task = task_for(convolution(algorithm, Shape(1, 1024, 16, 12, 12)), algorithm, "x86-64-v4")
    assert params(task, FixedConfig({"depth": 512})).depth == 512
    with pytest.raises(RejectedConfig):
        params(task, FixedConfig({"depth": 1024}))


def wide(shape: Shape, name: str, threads: int, l2: int):
    task = task_for(convolution(name, shape), name, "x86-64-v4")
    task = replace(task, target=replace(get_target("x86-64-v4"), l1=48 * KIB, l2=l2), threads=threads)
    return params(task, DefaultConfig())


@pytest.mark.parametrize(
    ("channels", "size", "threads", "l2", "inside"),
    [
        (128, 28, 1, 2 * MIB, True),  # V takes 0.9 MB
        (128, 28, 7, 2 * MIB, True),  # as many threads as rows of tiles
        (128, 28, 8, 2 * MIB, False),
        (128, 28, 1, MIB, False),  # L3 is near
        (512, 28, 1, 2 * MIB, False),  # V takes 3.6 MB
    ],
)
def test_transforms_walk_along_v_where_it_stays_in_a_large_l2(channels, size, threads, l2, inside):
    p = wide(Shape(1, channels, channels, size, size), "winograd4", threads, l2)
    assert not p.fused
    assert (p.input_order[-1] == "ib") is (p.output_order[-1] == "ov") is inside


@pytest.mark.parametrize(("threads", "rows"), [(1, 2), (2, 1)])
def test_threads_have_even_shares_of_rows(threads, rows):
    """14 rows in tasks of 4 are 8 for one thread and 6 for the other."""
    p = wide(Shape(1, 64, 64, 56, 56), "winograd4", threads, 2 * MIB)
    assert p.fused and p.rows == rows
