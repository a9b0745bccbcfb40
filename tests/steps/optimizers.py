"""Every optimizer of torch.optim in its settings: zero_grad, forward, backward, step."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
)

from tests.steps.data import labelled, mlp, targets
from tests.steps.loops import backward, classifies, learner, regressor
from tests.steps.registry import Loop, add, step

SETTINGS: list[tuple[str, type[Optimizer], dict[str, Any]]] = [
    ("sgd", SGD, {"lr": 0.1}),
    ("sgd_for_loop_momentum", SGD, {"lr": 0.1, "momentum": 0.9, "foreach": False}),
    ("sgd_nesterov_decay", SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True,
                                 "weight_decay": 0.01, "foreach": True}),
    ("sgd_dampening_maximize", SGD, {"lr": 0.01, "momentum": 0.5, "dampening": 0.1,
                                     "maximize": True}),
    ("sgd_fused", SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    ("adam", Adam, {"lr": 0.01}),
    ("adam_for_loop", Adam, {"lr": 0.01, "foreach": False}),
    ("adam_amsgrad_foreach", Adam, {"lr": 0.01, "amsgrad": True, "foreach": True}),
    ("adam_fused", Adam, {"lr": 0.01, "fused": True, "weight_decay": 0.1}),
    ("adam_tensor_lr", Adam, {"lr": torch.tensor(0.01), "foreach": False}),
    ("adamw", AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    ("adamw_foreach_maximize", AdamW, {"lr": 0.01, "foreach": True, "maximize": True}),
    ("adamw_fused_amsgrad", AdamW, {"lr": 0.01, "fused": True, "amsgrad": True}),
    ("adamax", Adamax, {"lr": 0.01}),
    ("adamax_foreach_decay", Adamax, {"lr": 0.01, "foreach": True, "weight_decay": 0.1}),
    ("nadam", NAdam, {"lr": 0.01}),
    ("nadam_decoupled", NAdam, {"lr": 0.01, "decoupled_weight_decay": True,
                                "weight_decay": 0.1, "foreach": True}),
    ("radam", RAdam, {"lr": 0.01}),
    ("radam_foreach_decoupled", RAdam, {"lr": 0.01, "foreach": True, "weight_decay": 0.1,
                                        "decoupled_weight_decay": True}),
    ("adagrad", Adagrad, {"lr": 0.1}),
    ("adagrad_decay_fused", Adagrad, {"lr": 0.1, "lr_decay": 0.01, "fused": True}),
    ("adagrad_foreach", Adagrad, {"lr": 0.1, "foreach": True, "initial_accumulator_value": 0.1}),
    ("adadelta", Adadelta, {"lr": 1.0}),
    ("adadelta_foreach", Adadelta, {"lr": 1.0, "foreach": True, "weight_decay": 0.01}),
    ("rmsprop", RMSprop, {"lr": 0.01}),
    ("rmsprop_centered_momentum", RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.9}),
    ("rmsprop_foreach", RMSprop, {"lr": 0.01, "foreach": True, "weight_decay": 0.01}),
    ("rprop", Rprop, {"lr": 0.01}),
    ("rprop_foreach", Rprop, {"lr": 0.01, "foreach": True, "maximize": True}),
    ("asgd", ASGD, {"lr": 0.01, "t0": 3.0}),
    ("asgd_foreach", ASGD, {"lr": 0.01, "foreach": True, "weight_decay": 0.01}),
    ("adafactor", Adafactor, {"lr": 0.01}),
    ("adafactor_foreach", Adafactor, {"lr": 0.01, "foreach": True, "weight_decay": 0.1}),
]  # fmt: skip


def classifier(kind: type[Optimizer], options: dict[str, Any]) -> Loop:
    """The usual step; gradients are cleared before it."""
    model = mlp()
    return classifies(model, kind(model.parameters(), **options))


for _name, _kind, _options in SETTINGS:
    add(f"optimizer_{_name}", __name__, partial(classifier, _kind, _options))


@step()
def muon_for_matrices_adamw_for_the_rest() -> Loop:
    model = mlp()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    muon, adamw = Muon(matrices, lr=0.02, weight_decay=0.1), AdamW(rest, lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for each in (muon, adamw):
            each.step()
            each.zero_grad(set_to_none=True)
        return loss.detach()

    return Loop(train, labelled, model=model, muon=muon, adamw=adamw)


@learner(LBFGS, model=lambda: nn.Linear(6, 1), batch=targets, lr=0.5, max_iter=3)
def lbfgs_with_a_closure(model, optimizer, x, y) -> float:
    """Its lists grow with each step, and each length is a capture (decision 039)."""

    def closure() -> Tensor:
        return backward(optimizer, F.mse_loss(model(x), y))

    return optimizer.step(closure).item()


@regressor(SGD, lr=0.05, momentum=0.9)
def closure_for_sgd(model, optimizer, x, y) -> Tensor:
    def closure() -> Tensor:
        return backward(optimizer, F.mse_loss(model(x), y))

    return optimizer.step(closure)
