"""Steps that are captured more than twice: how often in ten batches, and which ways they go.

Each way is one that Python takes, or a form of what it gets; what a step only counts with, compares
or clears is none (decision 054).
"""

from collections.abc import Mapping
from types import MappingProxyType

MOST = 2
"""Captures of all others: the first call makes what later ones find"""
FIRST = "its first call makes the optimizer's state"
EVERY = f"{FIRST}; one that does what each {{}}-th does; the others"
SIZES = f"{FIRST}; batches of the size of the first; of other sizes"
LISTS = "each length of the list that it fills"

WAYS: Mapping[str, tuple[int, str]] = MappingProxyType({
    # accumulation
    "four_micro_batches_by_a_counter": (4, "makes a gradient; adds; makes the state; uses it"),
    "accumulated_as_an_argument_says": (3, "makes a gradient; adds to it; adds and uses it"),
    # counters
    "q_learning_with_a_target_network": (3, EVERY.format(3)),
    "lookahead": (3, EVERY.format(3)),
    "lookahead_with_state_in_a_defaultdict": (3, "the first fills the dict; each second; others"),
    "warm_restarts_of_momentum": (3, EVERY.format(4)),
    # answers of data
    "asks_after_it_has_written": (3, f"{FIRST}; yes; no"),
    "a_scaler_that_skips_two_steps": (3, "its first call makes the scale; a step; a step skipped"),
    "a_scaler_and_clipping": (3, "its first call makes the scale; a step; a step skipped"),
    "a_batch_that_is_not_finite_is_left_out": (3, f"{FIRST}; a step; a step left out"),
    "a_layer_is_left_out_at_random": (6, "two, one or the other, none; with `.grad` and without"),
    # optimizers
    "optimizer_radam": (3, f"{FIRST}; up to the fifth step; from then on"),
    "optimizer_radam_foreach_decoupled": (3, f"{FIRST}; up to the fifth step; from then on"),
    "optimizer_asgd": (4, f"{FIRST}; max(1, step - t0) is an int; a float; mu is below 1"),
    "lbfgs_with_a_closure": (10, f"{FIRST}; each length of its history"),
    "a_group_is_added_later": (4, f"{FIRST}; one group; two, and state is made; two"),
    "weights_are_loaded_between_steps": (3, f"{FIRST}; its groups; those that are loaded"),
    # schedules in the step
    "step_lr_in_the_step": (3, EVERY.format(3)),
    "multi_step_in_the_step": (4, f"{FIRST}; others; each of two milestones, a key of a dict"),
    "constant_in_the_step": (3, f"{FIRST}; before its end; at and after it"),
    "linear_in_the_step": (3, f"{FIRST}; before its end; after it"),
    "polynomial_in_the_step": (3, f"{FIRST}; before its end; after it"),
    "cosine_restarts_in_the_step": (3, f"{FIRST}; a restart; others"),
    "warm_up_then_cosine_in_the_step": (3, f"{FIRST}; warm-up; cosine"),
    "one_cycle_in_the_step": (3, f"{FIRST}; up; down"),
    "cyclic_in_the_step": (3, f"{FIRST}; up; down"),
    "sequential_in_the_step": (5, f"{FIRST}; one schedule; the change; the second's first; then"),
    "chained_in_the_step": (3, f"{FIRST}; before the end of one; after it"),
    "reduced_on_a_plateau_in_the_step": (3, "a better loss; none; none for long"),
    # sizes
    "a_last_batch_that_is_smaller": (3, SIZES),
    "a_last_batch_that_is_smaller_with_batch_norm": (3, SIZES),
    "a_last_batch_of_one_row": (4, f"{SIZES}; of one row"),
    "a_penalty_on_batches_of_several_sizes": (3, f"{SIZES}; of one row"),
    "a_window_that_grows_by_a_counter": (3, "each length: a GRU goes through it step by step"),
    "one_of_two_heads_by_turns": (4, "each head, as its state is made and later"),
    # lists and places
    "moco_with_a_queue": (4, "each place: its module annotates inner functions with `int`"),
    "negatives_from_a_deque_of_batches": (4, "none to three batches are put together"),
    "losses_are_logged_in_a_list": (10, LISTS),
    "losses_are_logged_by_name": (10, LISTS),
    "the_last_three_losses": (4, LISTS),
})  # fmt: skip
"""By name; a step that needs fewer fails, too"""


def ways_of(name: str) -> tuple[int, int]:
    """The fewest and the most captures of a step in ten batches."""
    count = WAYS.get(name)
    return (1, MOST) if count is None else (count[0], count[0])
