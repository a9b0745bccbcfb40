"""What Python asks of a tensor without an operator: an argument and a global answer alike."""

import copy
import pprint
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace

LEAF = torch.arange(8.0, requires_grad=True)
MADE = LEAF * 2
PART = torch.arange(8.0)[2:6]

QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "is_leaf": lambda t: t.is_leaf,
    "grad_fn": lambda t: t.grad_fn is None,
    "_version": lambda t: t._version,
    "_base": lambda t: t._base is None,
    "_is_view": lambda t: t._is_view(),
    "storage_offset": lambda t: t.storage_offset(),
    "tolist": lambda t: max(t.tolist()),
    "numpy": lambda t: t.detach().numpy().max(),
    "data_ptr": lambda t: t.data_ptr() % 7,
    "untyped_storage": lambda t: t.untyped_storage().nbytes(),
    "storage": lambda t: len(t.storage()),
    "is_shared": lambda t: t.is_shared(),
    "register_hook": lambda t: t.register_hook(lambda grad: grad) is None,
    "post_accumulate": lambda t: t.register_post_accumulate_grad_hook(lambda t: None) is None,
    "backward": lambda t: t.sum().backward() is None,
    "copy": lambda t: copy.copy(t).shape[0],
}


def outcome(fn: Callable[..., Any], *args: Tensor) -> str | set[str]:
    """The kind of the refusal, or what is guarded."""
    try:
        requires = foretrace.capture(fn, args).recorded.requires
    except foretrace.Refusal as refusal:
        return refusal.kind
    return {"begins"} if requires.inputs.begins else set()


@pytest.mark.parametrize("tensor", [LEAF, MADE, PART], ids=["leaf", "made", "part"])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_global_answers_as_an_argument(name: str, tensor: Tensor) -> None:
    ask = QUESTIONS[name]
    hooks = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    of_an_argument = outcome(lambda x: x * ask(x), tensor)
    assert outcome(lambda x: x * ask(tensor), tensor.detach().clone()) == of_an_argument
    assert (tensor._backward_hooks, tensor._post_accumulate_grad_hooks) == hooks


def test_a_global_is_printed_as_an_argument_is(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: Tensor, t: Tensor) -> Tensor:
        sys.stdout.write(f"{t!r} {t}\n")
        return x * 2

    foretrace.capture(program, (PART.clone(), PART.clone()))
    foretrace.capture(lambda x: program(x, PART), (PART.clone(),))
    first, second = capsys.readouterr().out.splitlines()
    assert first == second


TEXTS: dict[str, Callable[[Tensor], str]] = {
    "repr": repr, "str": str, "formatted": lambda t: f"{t}", "with a form": lambda t: f"{t!r:>40}",
    "in a list": lambda t: str([t]), "by percent": lambda t: "%s" % t,  # noqa: UP031
    "printed": lambda t: pprint.pformat({"a": t}), "parameter": lambda t: repr(nn.Parameter(t)),
    "without data": lambda t: repr(t.to("meta")),
}  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("held", [False, True])
def test_what_has_a_text_runs_as_python(text: str, held: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, str]:
        return x * 2, TEXTS[text](PART if held else x)

    compiled = foretrace.compile(program)
    with pytest.warns(UserWarning, match="reads values"):
        assert compiled(PART)[1] == program(PART)[1]


@pytest.mark.parametrize("held", [False, True])
def test_the_text_of_a_number_is_guarded(held: bool) -> None:
    def program(x: Tensor) -> tuple[Tensor, str, str]:
        number = (PART if held else x).sum()
        return x * 2, f"{number:.2f}", f"{number}"

    compiled = foretrace.compile(program)
    for x in (PART, PART + 1, PART):
        assert compiled(x)[1:] == program(x)[1:]
    assert not compiled.breaks


def test_compile_asks_again() -> None:
    """A global's leaf is another's history, and begins elsewhere."""
    held = [MADE[1:3]]

    def program(x: Tensor) -> Tensor:
        return x * held[0].storage_offset() + held[0].is_leaf

    compiled = foretrace.compile(program, fullgraph=True)
    for tensor in (MADE[1:3], MADE[3:5], torch.ones(2)):
        held[0] = tensor
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


def detaches(x: Tensor) -> Tensor:
    x.detach_()
    return x * 2


def test_detach_in_place_is_refused_of_a_view() -> None:
    view = torch.randn(3, 4)[1:]
    with pytest.raises(foretrace.Refusal, match="detach_\\(\\) of a view") as caught:
        foretrace.capture(detaches, (view,))
    assert caught.value.at is not None
    compiled = foretrace.compile(detaches, fullgraph=True)
    cut = foretrace.capture(detaches, (view.clone(),)).cut("aten")
    for run in (compiled, cut):
        assert torch.equal(run(view.clone()), view * 2)
        with pytest.raises(foretrace.Refusal, match="view"):
            run(view)
    with torch.inference_mode():
        assert torch.equal(compiled(view), view * 2)


def _of_a_parameter(x: Tensor) -> Any:
    with torch.inference_mode():
        made = torch.nn.Parameter(x * 2)
        return made.requires_grad, made[0].requires_grad, made.t().requires_grad


def _of_a_leaf(x: Tensor) -> Any:
    with torch.inference_mode():
        made = torch.ones(2, 3, requires_grad=True)
        view = made.view(6)
    with torch.no_grad():
        later = made[0]
    return made.requires_grad, view.requires_grad, later.requires_grad


def _of_what_is_passed(x: Tensor) -> Any:
    with torch.inference_mode():
        return x[0].requires_grad, (x * 2)[0].requires_grad, x.clone().t().requires_grad


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("program", [_of_a_parameter, _of_a_leaf, _of_what_is_passed])
def test_views_of_inference_tensors_do_not_require_grad(program: Any) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    assert foretrace.compile(program)(x) == program(x)
