"""Where a route runs other kernels than eager, or more: each kind with its reason.

docs/limits.md has the same list, in a user's words.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Kind:
    """Programs whose graphs run some kernels that eager does not."""

    why: str
    programs: frozenset[str]
    kernels: frozenset[str]
    again: bool = False
    """They are calls that eager runs as well, only more of them"""


def _kind(why: str, programs: str, kernels: str, *, again: bool = False) -> Kind:
    return Kind(why, frozenset(programs.split()), frozenset(kernels.split()), again)


LISTED: Final = (
    _kind(
        "torch's formula of a product looks whether there are zeros; a graph has both answers and"
        " takes one: eager's kernels are among those that run",
        "a_batch_of_multiplied a_batch_of_multiplied_with_zeros a_batch_of_reduced"
        " product_with_the_hessian running reductions product_with_zeros"
        " products_of_one_and_in_a_wider_dtype",
        "cumprod cumsum prod sum",
    ),
    _kind(
        "what Python asked of data is asserted before the program has changed anything, so that"
        " what the question reads runs once more",
        "asked_under_other_modes gaussian_likelihood rounds_before_and_after",
        "exp mean mm sum",
        again=True,
    ),
    _kind(
        "the derivative of a scan runs each round again; torch's keeps what its partitioner says",
        "rows_scanned rows_scanned_by_a_layer",
        "cos mm tanh",
        again=True,
    ),
    _kind(
        "in place on a part with gaps: the functional form gives memory without gaps, which a"
        " pointwise kernel then reads; it computes each element alike",
        "autocast_cells_share_the_cast_of_a_weight noise_of_an_expanded_input_under_autocast"
        " parts_beside_each_other_in_place parts_with_gaps_in_place"
        " penalty_alone_of_recurrent_cells_in_half rrelu_of_parts",
        "leaky_relu rrelu_with_noise rrelu_with_noise_backward sigmoid_backward tanh_backward",
    ),
    _kind(
        "a complex number times a real one, with the operands in the other order: one of the parts"
        " is zero",
        "fourier",
        "mul",
    ),
    _kind(
        "a Function that writes outside is called for its results, and its writes are computed"
        " beside the call",
        "function_that_writes_outside",
        "mean sum",
        again=True,
    ),
    _kind(
        "a constant mask is the places where it is true, which index_put makes of it itself",
        "constant_masks",
        "_index_put_impl",
    ),
    _kind(
        "a rate of a fused optimizer and lengths of targets that stay open are tensors, by the"
        " overload that reads their numbers and computes as the one with numbers does",
        "connectionist_temporal_classification fused_adagrad_under_a_schedule"
        " fused_adam_under_a_schedule fused_adamw_under_a_schedule fused_sgd_under_a_schedule",
        "_ctc_loss _ctc_loss_backward _fused_adagrad _fused_adam _fused_adamw _fused_sgd",
    ),
    _kind(
        "the operator's backward computes a gradient of each tensor that its program is called"
        " with; eager's program reads this one from a closure, a graph passes it, and no gradient"
        " of it is returned by either",
        "attention_by_the_operator",
        "_index_put_impl",
    ),
)


def listed(program: str, kernel: str, *, again: bool) -> bool:
    """Whether a difference is known; `again`: eager runs that call, too, though less often."""
    return any(
        program in each.programs and kernel in each.kernels and (again or not each.again)
        for each in LISTED
    )
