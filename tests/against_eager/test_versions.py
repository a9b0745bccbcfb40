"""Where eager's backward refuses what it reads, or its forward what is written: so do we."""

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import foretrace
from tests.support.compare import same_as_eager
from tests.support.exporting import as_module
from tests.support.pairs import PairCut

Program = Callable[[Tensor], Tensor]


def under_no_grad(x: Tensor) -> Tensor:
    y = x.exp()
    with torch.no_grad():
        y.mul_(2)
    return y * 1


def followed(x: Tensor) -> Tensor:
    y = x.exp()
    z = y * 1
    y.mul_(2)
    return z + y


def by_a_detached_view(x: Tensor) -> Tensor:
    y = x.exp()
    y.detach().mul_(2)
    return y * 1


def by_a_view(x: Tensor) -> Tensor:
    y = x * 1
    z = y[0] * y[0]
    y[1].add_(1)
    return z


def of_itself(x: Tensor) -> Tensor:
    y = x * 1
    return y.mul_(y)


def in_a_composite(x: Tensor) -> Tensor:
    y = x * 1
    z = F.linear(x, y)
    with torch.no_grad():
        y.add_(1)
    return z


def with_followed_operand(x: Tensor) -> Tensor:
    y = x.exp()
    return y.mul_(x)


def beside_written_statistics(x: Tensor) -> Tensor:
    y = x * 1
    z = torch.nn.functional.batch_norm(y, torch.zeros(3), torch.ones(3), training=True)
    y.add_(1)
    return z


def beside_written_noise(x: Tensor) -> Tensor:
    y = x * 1
    with torch.autocast("cpu"):
        z = F.rrelu(y)
    y.add_(1)
    return z


def by_its_shape(x: Tensor) -> Tensor:
    return torch.relu(x).unsqueeze_(0)


def by_the_shape_of_a_view(x: Tensor) -> Tensor:
    y = x * 1
    z = y * y
    y.view(torch.int32).t_()
    return z


SAVED = [under_no_grad, followed, by_a_detached_view, by_a_view, of_itself, in_a_composite,
         with_followed_operand, beside_written_statistics, beside_written_noise, by_its_shape,
         by_the_shape_of_a_view]  # fmt: skip


def given() -> Tensor:
    return torch.linspace(-1, 1, 9).reshape(3, 3).clone().requires_grad_()


def backward(fn: Callable[[Tensor], Tensor], x: Tensor) -> str:
    """What the backward raises."""
    out = fn(x)
    with pytest.raises(RuntimeError) as caught:
        out.sum().backward()
    return str(caught.value)


@pytest.mark.parametrize("fn", SAVED, ids=lambda fn: fn.__name__)
def test_a_backward_that_eager_refuses(fn: Program) -> None:
    assert "modified by an inplace operation" in backward(fn, given())
    program = foretrace.capture(fn, (given(),))
    for ways in (program.cut("export"), program.cut("aten"), foretrace.compile(fn, fullgraph=True)):
        assert "modified by an inplace operation" in backward(ways, given())
        with torch.no_grad():
            assert torch.equal(ways(given()), fn(given()))
    with pytest.raises(foretrace.Refusal, match="writes over") as caught:
        program.cut("joint")
    assert caught.value.kind == "modified in place"
    assert fn.__name__ in str(caught.value.at)


@pytest.mark.parametrize("fn", SAVED, ids=lambda fn: fn.__name__)
def test_the_way_out(fn: Program) -> None:
    """A forward cut answers where nothing is trained."""
    x = given().detach()
    program = foretrace.capture(fn, (x,))
    assert torch.equal(program.cut("aten")(x), fn(x))


def of_several(x: Tensor) -> Tensor:
    y = x * 1
    y.unbind(0)[0].mul_(2)
    return y


def of_a_split(x: Tensor) -> Tensor:
    y = x * 1
    y.split(1)[0][0].mul_(2)
    return y


def taken_under_no_grad(x: Tensor) -> Tensor:
    y = x * 1
    with torch.no_grad():
        v = y[0]
    v.mul_(2)
    return y


def several_used_after_a_write(x: Tensor) -> Tensor:
    y = x * 1
    v = y.unbind(0)[0]
    y.mul_(2)
    return v * 1


def of_an_expanded(x: Tensor) -> Tensor:
    return (x[0] * 1).expand(3, 3).mul_(2)


def of_a_leaf(x: Tensor) -> Tensor:
    return x[0].mul_(2)


def of_several_used_after(x: Tensor) -> Tensor:
    y = x * 1
    v = y.unbind(0)[0]
    y.t_()
    return v * 1


def shape_of_a_leaf(x: Tensor) -> Tensor:
    return x[0].unsqueeze_(0)


REFUSED = {
    of_several_used_after: "in-place on view",
    shape_of_a_leaf: "in-place on leaf",
    of_several: "in-place on view",
    of_a_split: "in-place on view",
    taken_under_no_grad: "in-place on view",
    several_used_after_a_write: "in-place on view",
    of_an_expanded: "overlapping memory",
    of_a_leaf: "in-place on leaf",
}


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_a_forward_that_eager_refuses(fn: Program) -> None:
    with pytest.raises(RuntimeError):
        fn(given())
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(fn, (given(),))
    assert caught.value.kind == REFUSED[fn]
    assert fn.__name__ in str(caught.value.at)


def turned_under_no_grad(x: Tensor) -> Tensor:
    y = x * 1
    with torch.no_grad():
        y.unsqueeze_(0)
    return y * y


def test_a_history_of_another_shape_is_refused() -> None:
    with pytest.raises(foretrace.Refusal, match="another shape") as caught:
        foretrace.capture(turned_under_no_grad, (given(),))
    assert caught.value.kind == "unsupported"
    assert "turned_under_no_grad" in str(caught.value.at)


def argument_of_a_checkpoint(x: Tensor) -> Tensor:
    scale = x.detach() * 1
    y = checkpoint(lambda given: x.exp(), scale, use_reentrant=False)
    scale.mul_(2)
    return y


def detached_argument_of_a_checkpoint(x: Tensor) -> Tensor:
    scale = x * 1
    y = checkpoint(lambda given: x.exp(), scale, use_reentrant=False)
    scale.detach_()
    return y


def sizes_of_what_is_written(x: Tensor) -> Tensor:
    y = x.sign()
    z = y.index_copy(0, torch.tensor([1, 0]), y[:2])
    with torch.no_grad():
        y.mul_(2)
    return z


def view_in_a_composite(x: Tensor) -> Tensor:
    other = x.detach().view(1, 3, 3) * 1
    y = torch.inner(x, other)
    other[0].add_(1)
    return y


@pytest.mark.parametrize(
    "fn",
    [
        argument_of_a_checkpoint, detached_argument_of_a_checkpoint, sizes_of_what_is_written,
        view_in_a_composite,
    ],
)  # fmt: skip
def test_a_backward_refuses_what_it_takes_out_and_does_not_read(fn: Program) -> None:
    said = backward(fn, given())
    assert "modified by an inplace operation" in said or "detached in-place" in said
    with pytest.raises(foretrace.Refusal, match="writes over") as caught:
        foretrace.capture(fn, (given(),)).cut("joint")
    assert caught.value.kind == "modified in place"
    assert fn.__name__ in str(caught.value.at)


def returned_after_a_write(x: Tensor) -> Tensor:
    v = x[0]
    x.detach().mul_(2)
    return v


def test_a_view_that_no_caller_could_ask_for_a_gradient() -> None:
    """Taken and written over under no_grad around the program: eager raises at the next use."""
    compiled = foretrace.compile(returned_after_a_write, fullgraph=True)
    for ways in (compiled, lambda x: foretrace.capture(
        returned_after_a_write, (x,)
    )):  # fmt: skip
        with torch.no_grad(), pytest.raises(foretrace.Refusal) as caught:
            ways(given())
        assert caught.value.kind == "in-place on view"
        assert "returned_after_a_write" in str(caught.value.at)


def loose(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        v = x.expand(2, *x.shape)
    return v, x * 2


def passing(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
    return graph


def test_a_backward_that_begins_at_a_view_without_a_history() -> None:
    """Eager refuses it, for all that it requires grad; the other outputs train."""
    leaf = torch.randn(3, 3, requires_grad=True)
    program = foretrace.capture(loose, (leaf,))
    compiled = (
        foretrace.compile(loose, fullgraph=True),
        foretrace.compile(loose, backend=passing, fullgraph=True),
    )
    for ways in (loose, program.cut("export"), program.compile(), *compiled):
        x = torch.randn(3, 3, requires_grad=True)
        view, other = ways(x)
        assert view.requires_grad
        with pytest.raises(RuntimeError, match="does not have a grad_fn"):
            view.backward(torch.ones_like(view))
        (other.sum() + view.sum()).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full((3, 3), 2.0))
    assert [item.role.kind for item in program.cut("joint").graph.inputs].count("tangent") == 1
    with pytest.raises(foretrace.Refusal, match="taken under no_grad"):
        program.cut("joint", loss=0)
    with pytest.raises(foretrace.Refusal, match="taken under no_grad"):
        foretrace.export(as_module(loose), (leaf,))


def test_a_view_under_no_grad_has_it_of_the_base_of_all_after_a_write_unseen() -> None:
    def program(x: Tensor) -> tuple[Any, ...]:
        view = x[0]
        x.data.add_(1)
        x.unsafe_chunk(2)[0].mul_(2)
        return view, view.requires_grad, view * 2, x.data[1]

    for backend, of_itself in itertools.product(("eager", passing), (True, False)):
        compiled = foretrace.compile(program, backend=backend, fullgraph=True)
        for ways in (program, compiled):
            x = torch.randn(3, 4).requires_grad_() if of_itself else torch.randn(4, 3).t()
            with torch.no_grad():
                view, told, *others = ways(x.requires_grad_())
            assert (view.requires_grad, told) == (of_itself, of_itself)
            assert not any(each.requires_grad for each in others)


def behind_a_leaf(x: Tensor) -> Tensor:
    return (x * x).requires_grad_() * 2


def test_an_output_that_only_a_leaf_made_inside_is_behind() -> None:
    x = torch.randn(3)
    for backend in ("eager", passing):
        out = foretrace.compile(behind_a_leaf, backend=backend, fullgraph=True)(x)
        assert out.requires_grad
        assert not out.is_leaf
        out.sum().backward()


def windows(x: Tensor) -> Tensor:
    y = x.detach().reshape(9).clone()
    y.as_strided((3, 2), (1, 1)).square_()
    return y


def shifted(x: Tensor) -> Tensor:
    y = x * 1
    y[1:].add_(y[:-1])
    return y


def scattered_from_itself(x: Tensor) -> Tensor:
    y = x.detach() * 1
    return y.masked_scatter_(y > 0, y)


def one_tensor_for_both_statistics(x: Tensor) -> Tensor:
    both = torch.ones(3)
    return torch.nn.functional.batch_norm(x, both, both, training=True) * both


def detached(x: Tensor) -> Tensor:
    return x.detach_() * 2


@pytest.mark.parametrize(
    ("fn", "kind"),
    [
        (windows, "overlapping memory"),
        (shifted, "overlapping memory"),
        (scattered_from_itself, "overlapping memory"),
        (one_tensor_for_both_statistics, "overlapping memory"),
        (detached, "side effect"),
    ],
)
def test_what_no_graph_does(fn: Program, kind: str) -> None:
    x = given() * 1
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(fn, (x,))
    assert caught.value.kind == kind
    assert fn.__name__ in str(caught.value.at)
    assert x.requires_grad


@pytest.mark.parametrize("write", [torch.no_grad, torch.enable_grad])
def test_an_input_that_is_to_lose_its_history(
    write: Callable[[], AbstractContextManager[None]],
) -> None:
    """Eager takes that from what the input is a view of, once the count of writes tells."""

    def doubled(x: Tensor) -> Tensor:
        with write():
            x.detach().mul_(2)
        return x * 3

    x = torch.randn(4, 3)[1:].requires_grad_().t()
    assert doubled(x).grad_fn is not None
    with pytest.raises(foretrace.Refusal, match="does not require grad") as caught:
        foretrace.capture(doubled, (x,))
    assert caught.value.kind == "in-place on view"
    assert "doubled" in str(caught.value.at)


def squared(x: Tensor) -> Tensor:
    x.pow_(2)
    return x * 3


def part_squared(x: Tensor) -> Tensor:
    x[0].pow_(2)
    return x * x


def known_by_its_result(x: Tensor) -> Tensor:
    return F.elu_(x) * 3


def with_noise(x: Tensor) -> Tensor:
    return F.rrelu_(x, training=True) * 3


HISTORIES = [squared, part_squared, known_by_its_result, with_noise]


@pytest.mark.parametrize("fn", HISTORIES, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("way", ["export", "aten", "compile", "Program.compile"])
def test_an_input_with_a_history_is_written(fn: Program, way: str) -> None:
    """Autograd saves a copy of what the write itself needs, so writing back is no harm."""
    program = foretrace.capture(fn, (given() * 1,))
    ways = {"compile": foretrace.compile(fn, fullgraph=True), "Program.compile": program.compile()}
    call = ways.get(way) or program.cut(way)
    seen = []
    for run in (fn, call):
        leaf = given()
        x = leaf * 1
        torch.manual_seed(0)
        out = run(x)
        (gradient,) = torch.autograd.grad(out.sum() + x.sum(), leaf)
        seen.append((out, x, gradient))
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def written_after(x: Tensor) -> Tensor:
    F.elu_(x)
    return x.mul_(2)


@pytest.mark.parametrize("way", [foretrace.compile, lambda fn: foretrace.capture(
    fn, (given() * 1,)
).cut("export")])  # fmt: skip
def test_what_a_write_of_an_input_knows_by_its_result(way: Callable[[Program], Program]) -> None:
    assert "modified by an inplace operation" in backward(written_after, given() * 1)
    assert "modified by an inplace operation" in backward(way(written_after), given() * 1)


def as_it_says(x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        v = x.expand(2, *x.shape)
    return v, x * 2


def test_a_view_under_no_grad_is_as_the_base_of_its_tensor() -> None:
    base = torch.randn(2, 3)
    plain, seen = torch.randn(3).requires_grad_(), base[0].requires_grad_()
    for x in (plain, seen):
        eager = [t.requires_grad for t in as_it_says(x)]
        for cut in ("export", "aten"):
            made = foretrace.capture(as_it_says, (x,)).cut(cut)(x)
            assert [t.requires_grad for t in made] == eager
        assert [t.requires_grad for t in foretrace.compile(as_it_says, fullgraph=True)(x)] == eager


HELD = torch.ones(3, requires_grad=True)


def data_bound(x: Tensor) -> Tensor:
    HELD.data = x.detach()
    return HELD * x


def no_longer_trained(x: Tensor) -> Tensor:
    v = HELD * x
    HELD.requires_grad_(False)
    return v


def no_longer_trained_either(x: Tensor) -> Tensor:
    HELD.requires_grad = False
    return HELD * x


def test_a_tensor_from_outside_gets_the_memory_of_an_argument() -> None:
    kept, x = HELD.data, torch.randn(3)
    before = HELD.data_ptr()
    try:
        foretrace.capture(data_bound, (x,))
        assert HELD.data_ptr() == before
        found = foretrace.compile(data_bound, fullgraph=True)(x)
        assert HELD.data_ptr() == x.data_ptr()
        assert HELD.requires_grad
        assert HELD.is_leaf
        assert torch.equal(found, x * x)
        assert found.requires_grad
    finally:
        HELD.data = kept


def test_a_saved_result_that_is_complex_and_written_in_part() -> None:
    """Autograd has no formula for a scatter of complex numbers, and it saves nothing."""

    def turns(x: Tensor) -> Tensor:
        y = torch.polar(x, x)
        y[0] = 2
        return y

    x = torch.randn(3, 4, requires_grad=True)
    y = foretrace.capture(turns, (x,)).cut("export")(x)
    assert torch.equal(y, turns(x))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.abs().sum().backward()


def by_a_detached_tensor(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x * 3


def written_under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        x[0].add_(1)
    return x * x


QUIET = [by_a_detached_tensor, written_under_no_grad]
WAYS: list[Callable[[Program, Tensor], Program]] = [
    lambda fn, x: foretrace.capture(fn, (x,)).cut("export"),
    lambda fn, x: foretrace.capture(fn, (x,)).compile(),
    lambda fn, x: foretrace.compile(fn, fullgraph=True),
    lambda fn, x: foretrace.compile(fn, backend=lambda graph, inputs: graph, fullgraph=True),
]


@pytest.mark.parametrize("start", [lambda x: x[1:], lambda x: x * 1, lambda x: x], ids=[
    "a view of a leaf", "of a history", "a leaf"])  # fmt: skip
@pytest.mark.parametrize("way", WAYS, ids=["export", "Program.compile", "compile", "a backend"])
@pytest.mark.parametrize("fn", QUIET)
def test_an_input_keeps_its_history(
    fn: Program, way: Callable[[Program, Tensor], Program], start: Callable[[Tensor], Tensor]
) -> None:
    """Of what is written where autograd does not see it; the count of writes goes on."""
    found = []
    for make in (lambda fn, x: fn, way):
        leaf = given()
        x = start(leaf)
        out = make(fn, start(given()))(x)
        (gradient,) = torch.autograd.grad(out.sum() + x.sum(), leaf)
        found.append((out, x, gradient, leaf, x._version))
    for eagers, ours in zip(*found, strict=True):
        assert torch.equal(ours, eagers) if isinstance(ours, Tensor) else ours == eagers


@pytest.mark.parametrize("way", ["joint", "pair"])
def test_what_a_joint_cut_has_written_has_a_history_that_is_spent(way: str) -> None:
    """Eager's next backward goes on into it, and raises."""
    BUFFER.detach_().zero_()
    x = torch.randn(3, requires_grad=True)
    program = foretrace.capture(kept_in_a_buffer, (x,))
    joint = program.cut("joint") if way == "joint" else PairCut(*program.pair(loss=None))
    joint(x, tangents=[torch.ones(3)])
    assert BUFFER.requires_grad
    with pytest.raises(foretrace.Refusal, match="its history was in the cut") as caught:
        BUFFER.sum().backward()
    assert caught.value.kind == "double backward"
    with pytest.raises(foretrace.Refusal, match="requires_grad"):
        joint(x, tangents=[torch.ones(3)])
    BUFFER.detach_()
    joint(x, tangents=[torch.ones(3)])
    BUFFER.detach_()


def kept_in_a_buffer(x: Tensor) -> Tensor:
    BUFFER[:] = x.exp()
    return BUFFER * 2


BUFFER = torch.zeros(3)


def test_what_a_buffer_was_computed_from_is_behind_it() -> None:
    """A write over all of it leaves zeros of that, for which eager asks the old history."""
    for way in (kept_in_a_buffer, foretrace.compile(kept_in_a_buffer, fullgraph=True)):
        BUFFER.detach_().zero_()
        x = torch.randn(3, requires_grad=True)
        way(x).sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            way(x).sum().backward()
    BUFFER.detach_()


def zeroed(x: Tensor) -> Tensor:
    x.mul_(0)
    return x


@pytest.mark.parametrize("entry", ["eager", "cut", "compile"])
def test_what_an_input_held_adds_no_zeros_to_its_gradient(entry: str) -> None:
    """0.0 + -0.0 is 0.0: the sign is eager's only where nothing is added."""
    leaf = torch.randn(3, 4, requires_grad=True)
    call: Callable[..., Any] = zeroed
    if entry == "cut":
        call = foretrace.capture(zeroed, (leaf * 1,)).cut("export")
    elif entry == "compile":
        call = foretrace.compile(zeroed, fullgraph=True)
    call(leaf * 1).backward(-torch.ones(3, 4))
    assert leaf.grad is not None
    assert torch.signbit(leaf.grad).all()


def returned_and_used_twice_below_one_op(x: Tensor) -> tuple[Tensor, Tensor]:
    x.detach().add_(1)
    return x, F.rms_norm(x, x.shape[-1:])


@pytest.mark.parametrize("cut", ["export", "aten"])
def test_uses_below_one_op_are_counted_each(cut: str) -> None:
    """Eager adds the gradient of the output first, then that of each use, the last one first."""
    leaf = torch.randn(8, 16).requires_grad_()
    program = foretrace.capture(returned_and_used_twice_below_one_op, (leaf,))
    with pytest.raises(foretrace.Refusal, match="uses it more than once and returns it") as raised:
        program.cut(cut)
    assert "F.rms_norm(x" in str(raised.value)


@pytest.mark.parametrize("cut", ["export", "aten"])
def test_a_clone_of_what_is_used_twice(cut: str) -> None:
    def fn(x: Tensor) -> tuple[Tensor, Tensor]:
        x.detach().add_(1)
        return x.clone(), F.rms_norm(x, x.shape[-1:])

    leaf = torch.randn(8, 16).requires_grad_()
    run = foretrace.capture(fn, (leaf,)).cut(cut)
    start, gradients = leaf.detach().clone(), (torch.randn(8, 16), torch.randn(8, 16))
    found = []
    for each in (run, fn):
        x = start.clone().requires_grad_()
        torch.autograd.backward(each(x), gradients)
        found.append(x.grad)
    assert torch.equal(*found)


def counts_of_writes(x: Tensor) -> list[Tensor]:
    """Read at once, as what is written later is counted, too."""
    y, t = x * 2, torch.tensor([1.0, 2.0])
    found = [y._version, t._version]
    y.add_(1)
    z, data, detached = y[0], y.data, y.detach()
    z.mul_(2)
    data.zero_()
    detached.zero_()
    found += [y._version, z._version, data._version, detached._version, y.data._version]
    t += 1
    room = torch.empty(3).uniform_()
    room[0] = 1.0
    torch.exp(x[0], out=room)
    put = x.index_put((torch.tensor([0]),), x[0])
    composites = F.linear(x, x), F.layer_norm(x, (3,)), torch.einsum("ij,kj->ik", x, x), put
    found += [t._version, room._version, *(each._version for each in composites)]
    return [x * float(count) for count in found]


class Counting(torch.nn.Linear):
    """Asked inside of a module and of what it gave."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y += 1
        return y * float(y._version) if y._base is None and not y._is_view() else y


def test_what_the_program_has_made_counts_its_writes() -> None:
    x = torch.randn(3, 3)
    same_as_eager(counts_of_writes, (x,), cuts=("export", "aten"))
    same_as_eager(Counting(3, 3), (x,), loss=None)
    assert torch.equal(foretrace.compile(Counting(3, 3), dynamic=True)(x).isnan(), x > torch.inf)


class Writes(torch.autograd.Function):
    """Its forward writes to what it gives."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return (x * 2).add_(1)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


ASKS: list[Callable[[Tensor], int]] = [
    lambda x: x._version, lambda x: x[0]._version, lambda x: x.detach()._version,
    lambda x: Writes.apply(x)._version,
    lambda x: torch.cond(x.sum() > 0, lambda y: y + y._version, lambda y: y + 0, (x,)),
]  # fmt: skip


@pytest.mark.parametrize("ask", ASKS)
def test_what_a_call_brings_is_not_known(ask: Callable[[Tensor], int]) -> None:
    with pytest.raises(foretrace.Refusal, match="`_version`"):
        foretrace.capture(lambda x: x * ask(x), (torch.ones(3),))


def test_an_inference_tensor_has_no_version() -> None:
    @torch.inference_mode()
    def program(x: Tensor) -> Tensor:
        y = x * 2
        return y * y._version

    with pytest.raises(foretrace.Refusal, match="`_version`"):
        foretrace.capture(program, (torch.ones(3),))


@pytest.mark.parametrize("fn", [no_longer_trained, no_longer_trained_either])
def test_what_requires_grad_is_left_by_calls_alone(fn: Program) -> None:
    x = torch.randn(3)
    try:
        cut = foretrace.capture(fn, (x,)).cut("export")
        assert HELD.requires_grad
        found = cut(x)
        assert not HELD.requires_grad
        HELD.requires_grad_(True)
        expected = fn(x)
        assert torch.equal(found, expected)
        assert found.requires_grad == expected.requires_grad
    finally:
        HELD.requires_grad_(True)


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph])
@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[:, 1:], lambda x: x.t()])
def test_what_detach_gives_of_a_written_input_is_no_view(part: Any, backend: Any) -> None:
    """It shares the memory and its counter, as in eager; a part of it is a view."""

    def program(x: Tensor) -> tuple[Tensor, ...]:
        x.mul_(2)
        return x.detach(), x[0].detach(), x.detach()[0], x.detach().view_as(x)

    def called(call: Any) -> Any:
        x = part(torch.arange(6.0).view(2, 3))
        results = call(x)
        before = x._version
        results[0].add_(1)
        counted, facts = x._version - before, [(r._is_view(), r.stride()) for r in results]
        return counted, facts, x.tolist(), [r.tolist() for r in results]

    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    assert called(compiled) == called(compiled) == called(program)
