"""The ONNX importer. Importing this package registers the rules of every operator."""

from . import (
    rules_constants,
    rules_conv,
    rules_elementwise,
    rules_indexing,
    rules_matmul,
    rules_movement,
    rules_normalization,
    rules_pool,
    rules_quantize,
    rules_recurrent,
    rules_reduction,
    rules_resize,
    rules_sampling,
    rules_signal,
)

RULE_MODULES = (
    rules_constants,
    rules_conv,
    rules_elementwise,
    rules_indexing,
    rules_matmul,
    rules_movement,
    rules_normalization,
    rules_pool,
    rules_quantize,
    rules_recurrent,
    rules_reduction,
    rules_resize,
    rules_sampling,
    rules_signal,
)
