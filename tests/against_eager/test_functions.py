"""Users' own autograd.Functions, beyond the zoo: torch's database, wrong backwards, threads."""

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.autograd_function_db import MulGenVmap, autograd_function_db

import foretrace
from tests.programs.own_backward import Cube, Doubled, Gives, LateCube, Same
from tests.support.compare import same_as_eager
from tests.support.operators import sample_inputs
from tests.support.refusing import check, refused

Given = tuple[Callable[..., object], tuple[Any, ...]]


def samples(op: Any) -> list[Any]:
    """Made in a test, not where tests are collected."""
    return list(sample_inputs(op, torch.float32, requires_grad=True))


BY_NAME = [pytest.param(op, id=op.name) for op in autograd_function_db]


def applied(op: Any, sample: Any) -> Given:
    return (lambda *args: op(*args, **sample.kwargs)), (sample.input, *sample.args)


def leaves(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments anew."""
    return tuple(
        a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a
        for a in args
    )


def step(fn: Callable[..., object], args: tuple[Any, ...]) -> list[Tensor | None]:
    """Outputs and gradients of a run."""
    outs = fn(*args)
    tensors = outs if isinstance(outs, tuple) else (outs,)
    followed = [out for out in tensors if out.requires_grad]
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]
    seeds = [torch.full_like(out, 0.7) for out in followed]
    return [*tensors, *torch.autograd.grad(followed, wanted, seeds, allow_unused=True)]


def equal(left: list[Tensor | None], right: list[Tensor | None]) -> bool:
    pairs = zip(left, right, strict=True)
    return all(torch.equal(a, b) if a is not None and b is not None else a is b for a, b in pairs)


def asks_for_values(refusal: foretrace.Refusal) -> None:
    """Only a Function in numpy may be refused, and by that name."""
    assert "reads values that do not exist before the program runs" in str(refusal)


@pytest.mark.parametrize("op", BY_NAME)
def test_torchs_own_functions(op: Any) -> None:
    for sample in samples(op):
        as_in_eager(op, sample)


def as_in_eager(op: Any, sample: Any) -> None:
    fn, args = applied(op, sample)
    try:
        same_as_eager(fn, args, loss=None, cuts=("joint", "export"))
        compiled = foretrace.compile(fn, fullgraph=True)
        for _ in range(2):
            given = leaves(args)
            assert equal(step(fn, given), step(compiled, given))
    except foretrace.Refusal as refusal:
        asks_for_values(refusal)
        assert "numpy" in op.name.lower()


@pytest.mark.parametrize("op", BY_NAME)
def test_torchs_own_functions_in_a_file(op: Any) -> None:
    for sample in samples(op):
        only_without_grad(op, sample)


def only_without_grad(op: Any, sample: Any) -> None:
    fn, args = applied(op, sample)

    class Applied(nn.Module):
        def forward(self, *args: Any) -> Any:
            return fn(*args)

    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(Applied(), args)
    assert caught.value.kind in ("autograd.Function", "data-dependent")
    if caught.value.kind == "autograd.Function":
        with torch.no_grad():
            found, expected = foretrace.export(Applied(), args).module()(*args), fn(*args)
        both = (list(torch.utils._pytree.tree_leaves(each)) for each in (found, expected))
        assert equal(*both)
    else:
        asks_for_values(caught.value)


WRONG: dict[str, Callable[[Tensor], Any]] = {
    "too small": lambda g: g.sum(),
    "of another shape": lambda g: g[1:],
    "complex for real": lambda g: torch.complex(g, g),
    "no tensor": lambda g: 3,
}


def gives(x: Tensor, make: Callable[[Tensor], Any]) -> Tensor:
    return Gives.apply(x.sin(), make)  # here


@pytest.mark.parametrize("make", WRONG.values(), ids=WRONG)
def test_a_gradient_that_fits_nothing_is_refused_as_eager_does(make: Any) -> None:
    x = torch.randn(4, requires_grad=True)
    with pytest.raises((RuntimeError, TypeError)) as eager:
        gives(x, make).sum().backward()
    program = foretrace.capture(gives, (x, make))
    with pytest.raises(foretrace.Refusal) as caught:
        program.cut("joint", loss=None)
    check(caught.value, at=gives)
    assert str(eager.value).partition("\n")[0] in str(caught.value)


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def test_too_few_gradients_are_refused() -> None:
    x = torch.randn(4, requires_grad=True)
    program = foretrace.capture(lambda x: TooFew.apply(x, x), (x,))
    with pytest.raises(foretrace.Refusal, match=r"expected 2, got 1"):
        program.cut("joint", loss=None)


def test_a_function_that_cannot_be_recorded_names_its_line() -> None:
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.tensor(x.numpy() * 2)  # here

    check(refused(Reads.apply, (torch.randn(3),)), at=Reads.forward)


def test_another_thread_trains_while_one_captures() -> None:
    done: list[Tensor] = []

    def trains() -> None:
        x = torch.ones(3, requires_grad=True)
        Cube.apply(x).sum().backward()
        assert x.grad is not None
        done.append(x.grad)

    def meanwhile(x: Tensor) -> Tensor:
        thread = threading.Thread(target=trains)
        thread.start()
        thread.join()
        return Cube.apply(x)

    program = foretrace.capture(meanwhile, (torch.randn(3, requires_grad=True),))
    assert program.cut("export").nodes == ("x", "cube", "output")
    (gradient,) = done
    assert torch.equal(gradient, torch.full((3,), 100.0))


def test_torch_is_as_before_after_a_capture_and_a_refusal() -> None:
    single = torch.autograd.function._SingleLevelFunction
    before = dict(vars(single)), dict(vars(torch.autograd.Function))
    x = torch.randn(3, requires_grad=True)
    foretrace.capture(Cube.apply, (x,)).cut("joint", loss=None)
    refused(lambda x: Cube.apply(x).numpy(), (x,))
    assert (dict(vars(single)), dict(vars(torch.autograd.Function))) == before
    Cube.apply(x).sum().backward()
    assert x.grad is not None


def test_transforms_see_the_function_first() -> None:
    def row(x: Tensor) -> Tensor:
        return MulGenVmap.apply(x, x.sin()).sum()

    def under(x: Tensor) -> Tensor:
        slope = torch.func.grad(lambda y: LateCube.apply(y).sum())
        rows = torch.func.vmap(MulGenVmap.apply)(x, x) + torch.func.vmap(torch.func.grad(row))(x)
        return slope(x) * 2 + rows

    same_as_eager(under, (torch.randn(3),), cuts=("export", "aten"))


def base_written_without_grad(y: Tensor) -> Tensor:
    view = Same.apply(y, "view")
    with torch.no_grad():
        y.mul_(5)
    return view


def base_written(y: Tensor) -> Tensor:
    view = Same.apply(y, "view")
    y.mul_(5)
    return view


def view_written(y: Tensor) -> Tensor:
    view = Same.apply(y, "it")
    view.mul_(5)
    return view


def view_written_without_grad(y: Tensor) -> Tensor:
    view = Same.apply(y, "part")
    with torch.no_grad():
        view.mul_(5)
    return view


def another_marked(y: Tensor) -> Tensor:
    return MarksAnother.apply(y, torch.ones(3, 4))


class MarksAnother(torch.autograd.Function):
    """Marks an argument that it does not return."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return x * y.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g, None


EAGER_REFUSES = (
    base_written_without_grad, base_written, view_written, view_written_without_grad,
    another_marked,
)  # fmt: skip


@pytest.mark.parametrize("fn", EAGER_REFUSES, ids=lambda fn: fn.__name__)
def test_what_eager_refuses_of_its_results_is_refused(fn: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError):
        fn(x * 2).sum().backward()
    refusal = refused(lambda x: fn(x * 2).sum(), (x,))
    assert refusal.kind in ("in-place on view", "in-place on leaf", "unsupported")
    check(refusal)
    assert refusal.at is not None


def test_a_leaf_that_is_marked_as_written_is_refused_as_in_eager() -> None:
    def marks(x: Tensor) -> Tensor:
        return Doubled.apply(x, x.detach())[0]  # here

    leaf = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        marks(leaf)
    refusal = refused(marks, (torch.randn(3, 4, requires_grad=True),))
    check(refusal, at=marks)
    assert refusal.kind == "in-place on leaf"


def test_a_row_that_is_marked_as_written_is_refused() -> None:
    def marks(x: Tensor) -> Tensor:
        y = x * 2
        return Doubled.apply(y[0], x[0])[0]  # here

    check(refused(marks, (torch.randn(3, 4, requires_grad=True),)), at=marks)


class WritesGradient(torch.autograd.Function):
    """Its backward writes to the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.mul_(3)


def test_a_gradient_that_is_written_is_not_anothers() -> None:
    def shared(x: Tensor) -> Tensor:
        return x.cos() + WritesGradient.apply(x.sin())  # here

    x = torch.randn(3, requires_grad=True)
    same_as_eager(lambda x: WritesGradient.apply(x.sin()) * 2, (x,), loss=None, cuts=("joint",))
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(shared, (x,)).cut("joint", loss=None)
    check(caught.value, at=shared)
    assert caught.value.kind == "shared gradient"


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g @ g.new_ones(7, 7)  # here


def test_what_a_backward_raises_is_told_with_its_line() -> None:
    program = foretrace.capture(Raises.apply, (torch.randn(3, requires_grad=True),))
    with pytest.raises(foretrace.Refusal) as caught:
        program.cut("joint", loss=None)
    check(caught.value, at=Raises.backward)
    assert caught.value.kind == "program raised"


@pytest.mark.parametrize("way", ["joint", "export", "compile"])
def test_what_it_saved_is_written_over(way: str) -> None:
    def fn(x: Tensor) -> Tensor:
        y = x.cos()
        z = Cube.apply(y)
        y.add_(1)
        return z

    x = torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fn(x).sum().backward()
    program = foretrace.capture(fn, (x,))
    ways: dict[str, Callable[[], Any]] = {
        "joint": lambda: program.cut("joint", loss=None),
        "export": lambda: step(program.cut("export"), (x,)),
        "compile": lambda: step(foretrace.compile(fn, fullgraph=True), (x,)),
    }
    with pytest.raises((RuntimeError, foretrace.Refusal)):
        ways[way]()


class KeepsResult(torch.autograd.Function):
    """Keeps what it returns as an attribute: not as torch's documentation has it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.y = x.exp()
        return ctx.y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.y


def test_a_result_that_its_context_keeps_is_written_over() -> None:
    def fn(x: Tensor) -> Tensor:
        y = KeepsResult.apply(x)  # here
        y.add_(1)
        return y

    x = torch.randn(3, requires_grad=True)
    same_as_eager(KeepsResult.apply, (x,), loss=None, cuts=("joint", "export"))
    same_as_eager(fn, (x,), loss=None, cuts=("joint",))
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(fn, (x,)).cut("export")
    check(caught.value, at=fn)


def mixed(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    made = Cube.apply(w)
    return made, made.detach() * w, (made * x).sum(), x * w, made > 0


def test_the_aten_cut_gives_no_gradient_of_its_forward() -> None:
    """Results require grad as in eager; what depends on a Function has none to give."""
    x, w = torch.ones(3), torch.ones(3, requires_grad=True)
    results, expected = foretrace.capture(mixed, (x, w)).cut("aten")(x, w), mixed(x, w)
    for place, (ours, eagers) in enumerate(zip(results, expected, strict=True)):
        assert ours.requires_grad == eagers.requires_grad
        if place in (0, 2):
            with pytest.raises(foretrace.Refusal) as caught:
                torch.autograd.grad(ours.sum(), w, allow_unused=True)
            assert caught.value.kind == "autograd.Function"
            assert caught.value.at is not None
            assert "Cube.apply(w)" in caught.value.at.text
        elif eagers.requires_grad:
            both = [torch.autograd.grad(each.sum(), w)[0] for each in (ours, eagers)]
            assert torch.equal(*both)


def test_the_aten_cut_of_a_function_of_a_leaf_that_the_program_makes() -> None:
    """Its results require grad, though no input does."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        leaf = x.detach().requires_grad_()
        made = Cube.apply(leaf)
        return made, made.detach(), leaf * 2

    cut, x = foretrace.capture(fn, (torch.ones(3),)).cut("aten"), torch.rand(3)
    assert [each.requires_grad for each in cut(x)] == [True, False, True]
    with pytest.raises(foretrace.Refusal, match="Cube"):
        cut(x)[0].sum().backward()
    with torch.no_grad():
        assert [each.requires_grad for each in cut(x)] == [each.requires_grad for each in fn(x)]


class Spikes(torch.autograd.Function):
    """Applied in the kernels of an operator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x > 0).to(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


@torch.library.custom_op("foretrace_test::spikes", mutates_args=())
def spikes(x: Tensor, n: int) -> Tensor:
    return Spikes.apply(x) * n  # type: ignore[no-any-return]


spikes.register_fake(lambda x, n: Spikes.apply(x) * n)
spikes.register_autograd(lambda ctx, g: (g * 2, None))


def test_a_function_in_the_kernel_of_an_operator() -> None:
    """It is the operator's: no call of the program's."""
    x = torch.randn(4, requires_grad=True)
    same_as_eager(lambda x: spikes(x * 2, 3) + Spikes.apply(x), (x,), cuts=("joint",), loss=None)


LOG: list[float] = []


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


def test_a_list_that_is_filled_beside_a_function() -> None:
    """The function's code does not name the list, which is a global of its module."""

    def fn(x: Tensor) -> Tensor:
        LOG.append(1.0)
        return Twice.apply(x).sin()

    x = torch.randn(3, requires_grad=True)
    cut = foretrace.capture(fn, (x,)).cut("export")
    (gradient,) = torch.autograd.grad(cut(x).sum(), x)
    assert torch.equal(gradient, torch.autograd.grad(fn(x).sum(), x)[0])


def test_the_backward_of_a_custom_operator_that_writes_is_refused() -> None:
    @torch.library.custom_op("ft_functions::counted", mutates_args=())
    def counted(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return x.clone()

    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        with torch.no_grad():
            ctx.count.add_(1)
        return gradient * 2, None

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.count = inputs[1]

    counted.register_fake(lambda x, count: torch.empty_like(x))
    counted.register_autograd(backward, setup_context=keep)
    x, count = torch.ones(2, requires_grad=True), torch.zeros(2)
    foretrace.compile(counted, fullgraph=True)(x, count).sum().backward()
    assert count.tolist() == [1, 1]
    with pytest.raises(foretrace.Refusal, match="writes to a tensor that was there before it"):
        foretrace.capture(counted, (x, count)).cut("joint")


class TimesOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_no_hook_for_all_modules_sees_a_call_in_a_graph() -> None:
    layer, x = torch.nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)

    def program(x):
        return layer(TimesOne.apply(x.sin()))

    handle = torch.nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        for grad in (False, True):
            compiled = foretrace.compile(program, backend=lambda gm, _: gm.forward, fullgraph=True)
            with torch.set_grad_enabled(grad):
                assert torch.equal(compiled(x), program(x))
    finally:
        handle.remove()


class Noted:
    """What a Function may put into ctx."""

    sine: Tensor


class KeepsInAnObject(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, inside):
        ctx.noted = Noted()
        if inside:
            ctx.noted.sine = x.sin()
        else:
            ctx.sine = x.sin()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.noted.sine if hasattr(ctx.noted, "sine") else ctx.sine), None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_tensor_in_ctx_or_in_an_object_there(*, inside: bool, backend: str) -> None:
    def program(x):
        return KeepsInAnObject.apply(x, inside).sum()

    compiled, found = foretrace.compile(program, backend=backend, fullgraph=True), []
    for _ in range(2):
        for call in (compiled, program):
            x = torch.arange(4.0).requires_grad_()
            found.append(torch.autograd.grad(call(x), x)[0])
    assert all(torch.equal(each, found[0]) for each in found)


class Scale:
    """Holds a number and a tensor."""

    def __init__(self, by: Tensor) -> None:
        self.by = by


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale.by)
        return x * scale.by

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0], None


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_an_object_with_a_tensor_as_an_argument() -> None:
    """No graph calls it, as the object would have a tensor of the run; `compile` runs it."""

    def program(x, scale):
        return Scaled.apply(x, scale) * 1

    compiled = foretrace.compile(program)
    for number in (2.0, 3.0):
        x = torch.arange(3.0).requires_grad_()
        result = compiled(x, Scale(torch.full((3,), number)))
        assert torch.equal(result, x * number)
        assert torch.equal(*torch.autograd.grad(result.sum(), x), torch.full((3,), number))


class Sloped(torch.autograd.Function):
    """Asks for a gradient of a layer in its forward."""

    @staticmethod
    def forward(ctx, x, layer):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = layer(x).tanh().sum()
        return torch.autograd.grad(y, x)[0]

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_gradient_inside_of_a_forward_that_nothing_follows(backend: str) -> None:
    """The Function is opened, and its layers give what the gradient reads of their insides."""
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)

    def program(x):
        return Sloped.apply(x, layer) + Sloped.apply(x + 1, layer)

    with torch.no_grad():
        compiled = foretrace.compile(program, backend=backend, fullgraph=True)
        assert torch.equal(compiled(x), program(x))


OF_A_CLASS = """
import warnings
import torch, foretrace
from torch.masked import masked_tensor

warnings.simplefilter("ignore")

def program(data, mask):
    masked = masked_tensor(data, mask, requires_grad=True)
    masked.sum().backward()
    return masked.grad.get_data()

args = torch.arange(6.0).view(2, 3), torch.eye(2, 3, dtype=torch.bool)
try:
    foretrace.compile(program, fullgraph=True)(*args)
except foretrace.Refusal as refusal:
    print(refusal.kind)
print(torch.equal(foretrace.compile(program)(*args), program(*args)), torch.is_grad_enabled())
"""


def test_a_function_of_a_leaf_of_a_class_of_its_own_does_not_abort() -> None:
    """C++ asks a leaf among the arguments for its sizes, where nothing may raise."""
    done = subprocess.run([sys.executable, "-c", OF_A_CLASS], capture_output=True, text=True)  # noqa: PLW1510
    assert (done.returncode, done.stdout.split()[-2:]) == (0, ["True", "True"]), done.stderr


class SetUp(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.factor, None


def test_wrong_arguments_leave_grad_mode_on() -> None:
    def program(x: Tensor) -> tuple[Tensor, bool]:
        try:
            SetUp.apply(x)
        except TypeError:
            x = SetUp.apply(x, 3.0)
        return x * 2, torch.is_grad_enabled()

    x = torch.ones(2, requires_grad=True)
    found, on = foretrace.compile(program, fullgraph=True)(x)
    assert on
    assert torch.equal(torch.autograd.grad(found.sum(), x)[0], torch.full((2,), 6.0))
