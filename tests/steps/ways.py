"""Steps that are captured more than twice: how often in ten batches, and which ways they go.

Each way is one that Python takes, or a form of what it gets; what a step only counts with,
compares, clears or fills is none (decisions 054, 058), and what makes an optimizer's state runs as
Python (decision 055). `test_ways.py` runs each as Python: no step has more captures than ways.
"""

from collections.abc import Mapping
from types import MappingProxyType

MOST = 2
"""Captures of all others"""

WAYS: Mapping[str, tuple[int, str]] = MappingProxyType({
    # autograd makes a gradient where there is none, and else adds to it
    "four_micro_batches_by_a_counter": (3, "makes a gradient; adds to it; adds and uses it"),
    "accumulated_as_an_argument_says": (3, "makes a gradient; adds to it; adds and uses it"),
    "a_layer_is_left_out_at_random": (6, "two, one or the other, none; with `.grad` and without"),
    # optimizers and schedules
    "optimizer_asgd": (3, "max(1, step - t0) is an int; it is a float; mu is below 1"),
    "lbfgs_with_a_closure": (9, "each length of its history"),
    "multi_step_in_the_step": (3, "none; each of two milestones, a key of a dict"),
    "sequential_in_the_step": (4, "one schedule; the change; the first epoch of the other; later"),
    "reduced_on_a_plateau_in_the_step": (3, "a better loss; none; none for long"),
    # sizes and arguments
    "a_last_batch_of_one_row": (3, "batches as the first; of other sizes; of one row"),
    "a_window_that_grows_by_a_counter": (3, "each length: a GRU goes through it step by step"),
    # lists
    "negatives_from_a_deque_of_batches": (4, "none to three batches are put together"),
    "the_last_three_losses": (4, "`sum()` adds up none to two numbers and one more"),
})  # fmt: skip
"""By name; a step that needs fewer fails, too"""

IN_C: Mapping[str, str] = MappingProxyType({
    "a_last_batch_of_one_row": "a batch of one row has other strides, and no other operators",
    "the_last_three_losses": "`sum()` and `len()` have no lines",
})  # fmt: skip
"""Those whose ways neither Python's lines nor the operators tell apart, and where they part"""


def ways_of(name: str) -> tuple[int, int]:
    """The fewest and the most captures of a step in ten batches."""
    count = WAYS.get(name)
    return (1, MOST) if count is None else (count[0], count[0])
