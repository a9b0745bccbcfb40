"""The bars of the adapters: `make test-backends`, in an environment that has their packages.

Each model's loss and gradients as one graph, and steps whose state is fed back, by each compiler
beside eager, in float32. A gradient passes that is within 1e-5 of eager, of its largest element; or
no farther than four times as far from that of float64 as eager's is. Those are named: biases, which
sum what cancels, and of attention's keys all of it, as a softmax is the same for all of them.
And twenty joint graphs as ExportedPrograms, for ExecuTorch's edge and torch's ONNX exporter.
"""

import argparse
import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

import foretrace
from foretrace.runtime.backends.by_name import ADAPTERS
from tests.backends.exports import EXPORTERS, export_bars
from tests.backends.models import MODELS, OPTIMIZERS, STEPPED, Case

TOLERANCE, ROUNDING, STEPS = 1e-5, 4, 5
Bar = Callable[[str], tuple[bool, str]]


def gradients_of(model: nn.Module, loss_of: Callable[..., Tensor]) -> Callable[..., Any]:
    parameters = list(model.parameters())

    def gradients(*args: Any) -> Any:
        loss = loss_of(model, *args)
        return loss, torch.autograd.grad(loss, parameters, allow_unused=True)

    return gradients


def joint(make: Callable[[], Case]) -> Bar:
    def run(backend: str) -> tuple[bool, str]:
        torch.manual_seed(0)
        model, loss_of, args = make()
        exact = copy.deepcopy(model).double()
        wide = [each.double() if each.is_floating_point() else each for each in args]
        fn, other = gradients_of(model, loss_of), gradients_of(exact, loss_of)
        eager, known = gradients_of(copy.deepcopy(model), loss_of)(*args), other(*wide)
        found = foretrace.compile(fn, backend=backend, fullgraph=True)(*args)
        names = ["loss", *(name for name, _ in model.named_parameters())]
        rows = zip(names, flat(eager), flat(known), flat(found), strict=True)
        wrong = [name for name, *row in rows if row[0] is not None and not near(*row)]
        far = [far_off(one, two) for one, two in zip(flat(eager), flat(found), strict=True)]
        within = [each for each in far if each <= TOLERANCE]
        rounded = [n for n, each in zip(names, far, strict=True) if each > TOLERANCE]
        text = f"{max(within, default=0.0):.1e}, {len(rounded)} of {len(far)} by rounding alone"
        said = f"wrong: {', '.join(wrong)}" if wrong else ", ".join(rounded)
        return not wrong, f"{text}: {said}" if said else text

    return run


def flat(results: Any) -> list[Any]:
    loss, gradients = results
    return [loss, *gradients]


def far_off(eager: Tensor | None, found: Tensor | None) -> float:
    if eager is None or found is None:
        return 0.0 if eager is found else torch.inf
    return float((eager - found).abs().max() / eager.abs().max().clamp(min=1e-30))


def near(eager: Tensor, exact: Tensor, found: Tensor) -> bool:
    own, distance = (float((each - exact).abs().max()) for each in (eager, found))
    return far_off(eager, found) <= TOLERANCE or distance <= ROUNDING * own


def steps(make: Callable[[], Case], optimizer_of: Callable[[Any], Any]) -> Bar:
    def run(backend: str) -> tuple[bool, str]:
        torch.manual_seed(0)
        model, loss_of, args = make()
        other = copy.deepcopy(model)
        step, eager = step_of(model, loss_of, optimizer_of), step_of(other, loss_of, optimizer_of)
        compiled = foretrace.compile(step, backend=backend)
        far = 0.0
        for _ in range(1 + STEPS):  # the first creates the state, and runs as Python
            losses = eager(*args), compiled(*args)
            pairs = zip(other.parameters(), model.parameters(), strict=True)
            far = max(far, far_off(*losses), *(far_off(one, two) for one, two in pairs))
        return far <= TOLERANCE and not compiled.breaks, f"{far:.1e}"

    return run


def step_of(model: nn.Module, loss_of: Any, optimizer_of: Any) -> Callable[..., Tensor]:
    optimizer = optimizer_of(model.parameters())

    def step(*args: Any) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = loss_of(model, *args)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def bars(only: Sequence[str]) -> Iterator[tuple[str, Bar]]:
    every = {f"{name}, joint": joint(make) for name, make in MODELS.items()}
    for name, make in STEPPED.items():
        for kind, optimizer in OPTIMIZERS.items():
            every[f"{name}, {STEPS} steps of {kind}"] = steps(make, optimizer)
    every |= dict(export_bars())
    return ((name, bar) for name, bar in every.items() if not only or name.split(",")[0] in only)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.backends", description=__doc__)
    parser.add_argument("--backend", action="append", choices=list(ADAPTERS), help="default: all")
    parser.add_argument("--only", action="append", default=[], help="a model")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    console = Console(soft_wrap=True)
    names, chosen = options.backend or list(ADAPTERS), list(bars(options.only))
    failed = count = 0
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("", total=len(names) * len(chosen))
        for name, bar in chosen:
            for backend in names:
                progress.update(task, description=f"{name} by {backend}", advance=1)
                if "exported" in name and backend not in EXPORTERS:
                    continue
                count += 1
                try:
                    passed, text = bar(backend)
                except Exception as error:  # noqa: BLE001 - a compiler may raise anything
                    passed, text = False, f"{type(error).__name__}: {error!s:.200}"
                failed += not passed
                word = "passes" if passed else "fails"
                progress.console.print(f"{backend:<12} {name:<24} {word}: {text}", highlight=False)
    console.print(f"{count - failed} of {count} pass")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
