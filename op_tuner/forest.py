"""Gradient-boosted trees as tables, and code that walks them without a branch.

xgboost takes some 10 ns for each tree of a row, most of it for branches that no processor foresees. Here
every tree is complete: one that ends early goes on to the same leaf whatever is asked. So all take as many
steps, the way taken says only where the next step reads, and a processor has several trees under way at once.
"""

from __future__ import annotations

import ctypes
import json
from functools import lru_cache
from typing import Any

import numpy as np

from ..compiler.codegen.llvm import LoadedCode, optimise, target_machine
from ..compiler.target import host
from ..errors import InputError, InternalError

INFINITY = 0x7F800000  # its bits: those of NaN and of what has a sign are more
TOGETHER = 16  # rows that meet a tree one after the other: their features should fit the innermost cache


class Forest:
    """Of an xgboost model with a base score of 0, for rows of numbers that are not negative: their bits are
    in the same order. InputError where the trees ask for what rows do not have.

    columns     (trees, nodes) uint32, a level behind the other, the root first: which feature is asked for
    thresholds  (trees, nodes) float32: below, the way goes to the second node under this one, else the first
    leaves      (trees, nodes + 1) float32
    """

    def __init__(self, booster: Any):
        trees = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]["model"]["trees"]
        self.width = int(booster.num_features())
        self.depth = max((_depth(tree) for tree in trees), default=0)
        nodes = (1 << self.depth) - 1
        self.columns = np.zeros((len(trees), nodes), np.uint32)
        self.thresholds = np.zeros((len(trees), nodes), np.float32)
        self.leaves = np.zeros((len(trees), nodes + 1), np.float32)
        for tree, columns, thresholds, leaves in zip(trees, self.columns, self.thresholds, self.leaves):
            left, right = (np.array(tree[side]) for side in ("left_children", "right_children"))
            asked, conditions = np.array(tree["split_indices"]), np.array(tree["split_conditions"])
            level = np.zeros(1, int)
            for _ in range(self.depth):
                ends, own = left[level] < 0, slice(len(level) - 1, 2 * len(level) - 1)
                columns[own] = np.where(ends, 0, asked[level])
                thresholds[own] = np.where(ends, 0, conditions[level])
                below = np.where(ends, level, [right[level], left[level]])
                level = below.T.reshape(-1)
            leaves[:] = conditions[level]  # a leaf's value
        if self.columns.max(initial=0) >= max(self.width, 1):
            raise InputError(f"trees ask for feature {self.columns.max()} of {self.width}")
        self.thresholds = np.maximum(self.thresholds, 0) + 0  # nothing is below less, nor -0 below 0

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n,) float32 sums of leaves, added as xgboost does, tree by tree. InternalError for other rows."""
        rows = np.ascontiguousarray(rows, np.float32)
        if rows.shape[1] != self.width or rows.view(np.uint32).max(initial=0) > INFINITY:
            raise InternalError(f"expected rows of {self.width} numbers, none of them negative or NaN")
        found = np.zeros(len(rows), np.float32)
        tables = (table.ctypes.data for table in (self.columns, self.thresholds, self.leaves))
        _walk(self.depth)(rows.ctypes.data, *rows.shape, *tables, len(self.leaves), found.ctypes.data)
        return found


def _depth(tree: dict[str, list[int]]) -> int:
    left, right = tree["left_children"], tree["right_children"]
    depth, level = 0, [0]
    while level := [child for node in level if left[node] >= 0 for child in (left[node], right[node])]:
        depth += 1
    return depth


@lru_cache
def _walk(depth: int) -> Any:
    """walk(rows, count, width, columns, thresholds, leaves, trees, sums), for this machine."""
    code = LoadedCode([target_machine(host()).emit_object(optimise(_text(depth), host()))], host())
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kind = ctypes.CFUNCTYPE(None, pointer, number, number, pointer, pointer, pointer, number, pointer)
    walk: Any = kind(code.address("walk"))
    walk.code = code  # lives as long
    return walk


def _text(depth: int) -> str:
    nodes = (1 << depth) - 1
    steps = "".join(_step(level) for level in range(depth))
    return f"""
declare i64 @llvm.smin.i64(i64, i64)
define void @walk(ptr noalias %all.rows, i64 %count, i64 %width, ptr noalias %all.columns,
                  ptr noalias %all.thresholds, ptr noalias %all.leaves, i64 %trees, ptr noalias %sums) {{
entry:
  %trees.there = icmp sgt i64 %trees, 0
  %rows.there = icmp sgt i64 %count, 0
  %there = and i1 %trees.there, %rows.there
  br i1 %there, label %rows, label %done
rows:
  %begin = phi i64 [ 0, %entry ], [ %end, %rows.next ]
  %full = add i64 %begin, {TOGETHER}
  %end = call i64 @llvm.smin.i64(i64 %full, i64 %count)
  br label %tree
tree:
  %t = phi i64 [ 0, %rows ], [ %t.next, %tree.next ]
  %node.at = mul i64 %t, {nodes}
  %leaf.at = mul i64 %t, {nodes + 1}
  %columns = getelementptr i32, ptr %all.columns, i64 %node.at
  %thresholds = getelementptr i32, ptr %all.thresholds, i64 %node.at
  %leaves = getelementptr float, ptr %all.leaves, i64 %leaf.at
  br label %row
row:
  %n = phi i64 [ %begin, %tree ], [ %n.next, %row ]
  %row.at = mul i64 %n, %width
  %values = getelementptr i32, ptr %all.rows, i64 %row.at
  %place0 = add i64 0, 0
{steps}
  %leaf.from = getelementptr float, ptr %leaves, i64 %place{depth}
  %leaf = load float, ptr %leaf.from
  %sum.from = getelementptr float, ptr %sums, i64 %n
  %before = load float, ptr %sum.from
  %sum = fadd float %before, %leaf
  store float %sum, ptr %sum.from
  %n.next = add i64 %n, 1
  %rows.left = icmp slt i64 %n.next, %end
  br i1 %rows.left, label %row, label %tree.next
tree.next:
  %t.next = add i64 %t, 1
  %trees.left = icmp slt i64 %t.next, %trees
  br i1 %trees.left, label %tree, label %rows.next
rows.next:
  %more = icmp slt i64 %end, %count
  br i1 %more, label %rows, label %done
done:
  ret void
}}
"""


def _step(level: int) -> str:
    """From a place within a level to the one within the next."""
    return f"""
  %node{level} = add i64 %place{level}, {(1 << level) - 1}
  %column.from{level} = getelementptr i32, ptr %columns, i64 %node{level}
  %column{level} = load i32, ptr %column.from{level}
  %wide{level} = zext i32 %column{level} to i64
  %value.from{level} = getelementptr i32, ptr %values, i64 %wide{level}
  %value{level} = load i32, ptr %value.from{level}
  %threshold.from{level} = getelementptr i32, ptr %thresholds, i64 %node{level}
  %threshold{level} = load i32, ptr %threshold.from{level}
  %below{level} = icmp ult i32 %value{level}, %threshold{level}
  %second{level} = zext i1 %below{level} to i64
  %first{level} = shl i64 %place{level}, 1
  %place{level + 1} = add i64 %first{level}, %second{level}"""
