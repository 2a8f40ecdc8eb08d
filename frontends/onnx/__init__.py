"""The ONNX importer. Importing this package registers the rules of every operator."""

from . import (  # noqa: F401
    rules_constants,
    rules_conv,
    rules_elementwise,
    rules_indexing,
    rules_matmul,
    rules_microsoft,
    rules_microsoft_attention,
    rules_microsoft_blocks,
    rules_microsoft_decoding,
    rules_microsoft_quantize,
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
