"""What does not work today, by name: words of the refusal, or that it differs from eager."""

FAILS: dict[str, str] = {
    "a_gan_that_freezes_the_discriminator": "the program changes requires_grad of a leaf",
    "wasserstein_with_a_gradient_penalty": "differs from eager",
    "descends_through_data": "the program sets tensor.data",
    "checkpointed_layers": "a checkpoint computes t again in the",
    "checkpointed_dropout": "a checkpoint computes t again in the",
    "heat_equation_with_a_learned_constant": "the program changes requires_grad of a leaf",
    "sharpness_aware_as_an_optimizer": "the program sets tensor.data",
    "newton_by_conjugate_gradients": "differs from eager",
    "a_scaler_that_never_skips": "the program binds _per_optimizer_states,",
    "a_scaler_that_skips_two_steps": "the program binds _per_optimizer_states,",
    "a_scaler_that_grows": "the program binds _per_optimizer_states,",
    "a_scaler_and_clipping": "the program binds _per_optimizer_states,",
    "a_scaler_with_two_optimizers": "the program binds _per_optimizer_states,",
    "moco_with_a_queue": "the program sets tensor.data",
    "the_model_is_an_argument": "the program stores a tensor, f32[10, 6],",
    "warm_restarts_of_momentum": "the program raised KeyError: ",
}
ONLY_AS_A_WHOLE: frozenset[str] = frozenset({"warm_restarts_of_momentum"})
"""The cut of a capture works"""
ONLY_BY_A_CUT: frozenset[str] = frozenset()
"""The compiled step works"""
