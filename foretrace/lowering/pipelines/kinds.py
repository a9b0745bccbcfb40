"""Each kind of cut as the list of its passes, in the order in which they run.

`make_graph(EXPORT, "export", context)` makes the graph; it starts with the tree that was recorded.
A pass that has nothing to do returns the graph that it was passed.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from foretrace.lowering.pipelines.forward import (
    assert_numbers,
    check_functions,
    cut_subgraphs,
    cut_trained_subgraphs,
    drop_dead,
    drop_unread_writes,
    flatten_forward,
    flatten_leaving_writes,
    history_as_ops,
    memory_as_ops,
    place_views,
    register_hooks,
    return_insides,
    separate_reshaped,
    unmark_leaves,
)
from foretrace.lowering.pipelines.joint import (
    check_hooks,
    check_left_gradients,
    cut_joint_subgraphs,
    differentiate,
    differentiate_between_inputs,
    flatten_joint,
)
from foretrace.lowering.pipelines.passes import Pass
from foretrace.lowering.pipelines.rewrites import (
    numbers_as_tensors,
    open_by_table,
    open_subclasses,
    recompute,
)

Pipeline = tuple[Pass, ...]

TRAINED: Final[Pipeline] = (
    flatten_leaving_writes,
    drop_unread_writes,
    history_as_ops,
    separate_reshaped,
    memory_as_ops,
    place_views,
    drop_dead,
    cut_trained_subgraphs,
    return_insides,
    assert_numbers,
    register_hooks,
    check_functions,
)
"""A forward that torch's autograd follows as it follows the program"""
UNTRAINED: Final[Pipeline] = (
    flatten_forward,
    drop_dead,
    cut_trained_subgraphs,
    return_insides,
    assert_numbers,
    check_functions,
)
"""A forward that is called where autograd follows nothing"""
UNTRAINED_LEAVES: Final[Pipeline] = (*UNTRAINED, open_subclasses)
"""The same, down to leaves, for a compiler"""
INFERENCE: Final[Pipeline] = (
    flatten_forward,
    unmark_leaves,
    drop_dead,
    cut_subgraphs,
    return_insides,
    assert_numbers,
)
"""The same without the history of the programs that ops hold: nobody runs them by autograd"""
_FROM_DERIVATIVE: Final[Pipeline] = (
    flatten_joint,
    unmark_leaves,
    drop_dead,
    cut_joint_subgraphs,
    return_insides,
    assert_numbers,
)
DERIVED: Final[Pipeline] = (differentiate_between_inputs, *_FROM_DERIVATIVE, open_subclasses)
"""Forward and backward, for a caller that lets torch's autograd have the gradients"""

EXPORT: Final[Pipeline] = (*TRAINED, open_by_table)
ATEN: Final[Pipeline] = (*TRAINED, open_subclasses, open_by_table)
STEP: Final[Pipeline] = (
    check_left_gradients,
    *INFERENCE,
    open_subclasses,
    numbers_as_tensors,
    open_by_table,
    recompute,
)
JOINT: Final[Pipeline] = (
    check_left_gradients,
    check_hooks,
    differentiate,
    *_FROM_DERIVATIVE,
    open_subclasses,
    numbers_as_tensors,
    open_by_table,
)
CUTS: Final[Mapping[str, Pipeline]] = MappingProxyType(
    {"export": EXPORT, "aten": ATEN, "step": STEP, "joint": JOINT}
)
"""The cuts that `Program.cut` takes from the tree, by their kinds"""
