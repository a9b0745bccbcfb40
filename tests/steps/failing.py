"""What does not work today, by name: words of the refusal, or that it differs from eager."""

FAILS: dict[str, str] = {
    "gradients_are_views_of_one_buffer": "the program writes to an input whose memory",
}
ONLY_AS_A_WHOLE: frozenset[str] = frozenset(
    {
        "a_last_batch_of_one_row",
        "a_penalty_on_batches_of_several_sizes",
    }
)
"""The cut of a capture works"""
ONLY_BY_A_CUT: frozenset[str] = frozenset()
"""The compiled step works"""
NOT_BY_THE_STEP_CUT: frozenset[str] = frozenset(
    {"a_gradient_that_has_a_graph_stays", "a_gradient_with_a_graph_is_added_to"}
)
"""It runs below autograd, so that no `.grad` has a history"""
