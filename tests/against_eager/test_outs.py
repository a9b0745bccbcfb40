"""`out=` and in-place ops one by one: what is refused, what eager raises, what stays in place."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.compare import same_as_eager


def refusal(fn: Callable[..., object], *args: Tensor, **options: object) -> foretrace.Refusal:
    """What the capture is refused with."""
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(fn, args, **options)
    return caught.value


def told(refused: foretrace.Refusal) -> str:
    """The refusal, which has a line of this file and a way out."""
    assert __file__.rpartition("/")[2] in str(refused)
    assert refused.do
    return f"{refused.kind}: {refused.what}"


X = torch.arange(12.0).view(3, 4)


@pytest.mark.parametrize("room", [torch.zeros(3, 4).long(), torch.zeros(3, 4).bool()])
def test_out_of_a_dtype_that_the_result_cannot_be_cast_to(room: Tensor) -> None:
    def program(x: Tensor, room: Tensor) -> Tensor:
        return torch.exp(x, out=room)

    with pytest.raises(RuntimeError) as eager:
        program(X, room)
    with pytest.raises((foretrace.Refusal, RuntimeError)) as ours:
        foretrace.capture(program, (X, room)).cut("export")(X, room)
    assert str(eager.value) in str(ours.value)


@pytest.mark.parametrize(
    "op", [torch.nonzero, lambda x, out: torch.masked_select(x, x > 1, out=out)]
)
def test_out_whose_size_depends_on_data(op: Callable[..., Tensor]) -> None:
    found = refusal(lambda x, room: op(x, out=room), X, torch.zeros(0, dtype=op(X, out=None).dtype))
    assert found.kind in {"no functional form", "side effect"}


def test_out_that_is_an_input_of_another_shape() -> None:
    found = refusal(lambda x, room: torch.exp(x, out=room), X, torch.zeros(0))
    assert "side effect: a tensor of [0] is resized in place to [3, 4]" in told(found)


def test_out_that_others_see_and_that_has_another_shape() -> None:
    def whole(x: Tensor) -> Tensor:
        room = torch.zeros(0)
        flat = room.view(-1)
        torch.exp(x, out=room)
        return flat

    def part(x: Tensor) -> Tensor:
        return torch.exp(x, out=torch.zeros(4, 4)[:0])

    assert "side effect" in told(refusal(whole, X))
    assert "side effect" in told(refusal(part, X))


def test_out_that_has_a_history_and_another_shape() -> None:
    """Eager leaves it the history of the old shape; an input that is no leaf is such a tensor."""

    @torch.no_grad()
    def given(room: Tensor) -> Tensor:
        return torch.exp(X, out=room).detach()

    def made(x: Tensor) -> Tensor:
        return given(x * 2)

    def values_and_places(x: Tensor) -> Tensor:
        room = x * 2
        with torch.no_grad():
            torch.max(X, 0, out=(room, torch.empty(0, dtype=torch.long)))
        return room.detach()

    followed = torch.randn(2, 2, requires_grad=True)
    assert "unsupported: a tensor of [2, 2] with a" in told(refusal(given, followed * 2))
    assert "unsupported: a tensor of [2, 2] with a" in told(refusal(made, followed))
    assert "unsupported: a tensor of [2, 2] with a" in told(refusal(values_and_places, followed))


def test_out_that_is_an_input_which_got_a_history_and_lost_it() -> None:
    w = torch.randn(2, 2, requires_grad=True)

    def program(room: Tensor) -> Tensor:
        room.mul_(w).detach_()
        return torch.exp(X, out=room)

    found = refusal(program, torch.randn(2, 2))
    assert "side effect: the program resizes the input room" in told(found)


def test_strides_of_a_resized_out_that_torch_does_not_tell() -> None:
    found = refusal(lambda x: torch.linalg.qr(x, out=(torch.empty(0), torch.empty(0))), X)
    assert "no functional form: what becomes of an `out` of [0]" in told(found)
    same_as_eager(
        lambda x: torch.linalg.qr(x, out=(torch.empty(3, 3), torch.empty(3, 4))),
        (X,),
        cuts=["aten"],
    )


def test_out_of_a_norm_that_writes_statistics_in_another_layout() -> None:
    def program(x: Tensor, mean: Tensor, var: Tensor) -> object:
        outs = (torch.empty(4, 3).t(), torch.empty(4), torch.empty(4))
        return torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, out=outs)

    assert "and writes more" in told(refusal(program, X, torch.zeros(4), torch.ones(4)))


def test_the_functional_form_stands_in_the_graph_where_it_is_the_same() -> None:
    def program(x: Tensor, room: Tensor) -> Tensor:
        return torch.exp(x, out=room)

    def called(room: Tensor) -> list[object]:
        graph = foretrace.capture(program, (X, room)).cut("export").graph_module.graph
        return [node.target for node in graph.nodes if node.op == "call_function"]

    assert called(torch.zeros(3, 4)) == [torch.ops.aten.exp.default]
    assert called(torch.zeros(4, 3).t())[-1] is torch.ops.aten.exp.out
    assert called(torch.zeros(3, 4, dtype=torch.float64))[-1] is torch.ops.aten.exp.out


def test_resize_of_what_autograd_follows() -> None:
    def program(x: Tensor) -> Tensor:
        return x.mul(2).resize_(2)

    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError) as eager:
        program(x)
    assert str(eager.value) in str(refusal(program, x))
    assert "no functional form" in told(refusal(program, X))


def test_shape_changed_in_place_with_open_sizes() -> None:
    """As written, and inside matmul, whose body ends in `squeeze_` for a vector."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.mul(2).t_()
        return y + torch.ones(y.shape), x[:, 0] @ x

    cut = foretrace.capture(program, (X,), dynamic_shapes=True).cut("export")
    for given in (X, torch.randn(5, 7)):
        for ours, eager in zip(cut(given), program(given), strict=True):
            assert torch.equal(ours, eager)


def test_an_out_op_is_opened_to_its_functional_form_by_a_table() -> None:
    def program(x: Tensor) -> Tensor:
        room = torch.zeros(3, 8)
        torch.mul(x, 2, out=room[:, ::2])
        torch.add(x, 1, out=room[:, 4:].double()[:, :4])
        return room

    cut = foretrace.capture(program, (X,)).cut(
        "aten", decompositions=torch.export.default_decompositions()
    )
    assert torch.equal(cut(X), program(X))
    assert not any(str(node.target).endswith("out") for node in cut.graph_module.graph.nodes)


@pytest.mark.parametrize("dynamic", [False, True])
def test_out_of_other_sizes_and_other_strides(dynamic: bool) -> None:
    def program(x: Tensor) -> Tensor:
        room = torch.zeros(0)
        torch.kron(x, x, out=room)
        return room

    found = refusal(program, torch.randn(4, 4).t(), dynamic_shapes=dynamic)
    assert "what becomes of an `out`" in told(found)
    cuts, square = ("export", "aten"), torch.randn(4, 4)
    same_as_eager(program, (square,), dynamic_shapes=dynamic, cuts=cuts, loss=None)
