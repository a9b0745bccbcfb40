"""What does not work today, by name: words of the refusal, or that it differs from eager."""

FAILS: dict[str, str] = {
    "a_gan_that_freezes_the_discriminator": "the program writes to a leaf that it has",
    "sharpness_aware_as_an_optimizer": "the program sets tensor.data",
    "moco_with_a_queue": "the program sets tensor.data",
    "gradients_are_views_of_one_buffer": "the program writes to an input whose memory",
    "parameters_are_set_from_a_vector": "the program sets tensor.data",
    "a_copy_of_the_model_tries_first": "tensor.data_ptr reads values that do not",
    "warm_restarts_of_momentum": "the program raised KeyError: ",
}
ONLY_AS_A_WHOLE: frozenset[str] = frozenset(
    {
        "warm_restarts_of_momentum",
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
