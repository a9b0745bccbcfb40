"""What a program changes and a graph cannot: attributes, containers, hooks, switches, memory."""

import functools
import operator
from typing import Any

import torch
from torch import Tensor, nn, set_num_threads

import foretrace
from tests.refusals.asks import captures, cuts, exports
from tests.refusals.follow import captured, compiled, exported, once_before, same
from tests.refusals.registry import refuses

X = torch.randn(6, 8)
HALF = torch.randn(3, 8, requires_grad=True)
ROW = torch.randn(1, 4, requires_grad=True)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.extend([x * 2, object()])  # here
        return x + 1


class Returns(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x * 2


class Caches(nn.Module):
    """Its first call makes a table."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.tables:
            self.tables.append(torch.arange(8) * 2.0)  # here
        return x + self.tables[0]


ATTRIBUTES = "python_state/effects/module_state.py:check_attributes"
refuses("side effect", ATTRIBUTES).when(
    captures(Remembers(), X), captured(Returns(), X), once_before(Caches(), X)
)


class Hooks(nn.Module):
    """Its first call registers a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.ready = nn.Linear(8, 8), False

    def forward(self, x: Tensor) -> Any:
        if not self.ready:
            self.inner.register_forward_hook(doubled)  # here
            self.ready = True
        return self.inner(x)


def doubled(module: nn.Module, args: object, result: Tensor) -> Tensor:
    return result * 2


def hooked_before() -> nn.Module:
    net = nn.Linear(8, 8)
    net.register_forward_hook(doubled)
    return net


refuses("side effect", "python_state/effects/swapped_module.py:check_registered").when(
    captures(Hooks(), X), captured(hooked_before(), X), once_before(Hooks(), X)
)


class Names(nn.Module):
    """Registers a buffer while it runs."""

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("made", x * 2)  # here
        return x


refuses("side effect", "python_state/effects/swapped_module.py:check_registered").when(
    captures(Names(), X), captured(Returns(), X), once_before(Hooks(), X)
)


class Swaps(nn.Module):
    """Has another weight after its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.spare = nn.Linear(8, 8), [nn.Parameter(torch.ones(8, 8))]

    def forward(self, x: Tensor) -> Any:
        if self.inner.weight is not self.spare[0]:
            self.inner.weight = self.spare[0]  # here
        return self.inner(x)


class CopiesInto(Swaps):
    """Has another value there."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.inner.weight.copy_(self.spare[0])
        return self.inner(x)


refuses("side effect", "python_state/effects/swapped_module.py:check_parameters").when(
    captures(Swaps(), X), captured(CopiesInto(), X), once_before(Swaps(), X)
)

KEPT: list[Any] = []


def keeps(x: Tensor) -> Tensor:
    y = x * 2
    KEPT.append((y, object()))  # here
    return x


def returns(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x * 2


ESCAPED = "python_state/effects/leaks.py:_refusal"
TABLES: list[Tensor] = []


def looks_up(x: Tensor) -> Tensor:
    if not TABLES:
        TABLES.append(torch.arange(8) * 2.0)  # here
    return x + TABLES[0]


refuses("side effect", ESCAPED).when(
    captures(keeps, X),
    captured(returns, X),
    once_before(looks_up, X),
)


@functools.cache
def table(n: int) -> Tensor:
    return torch.arange(n) * 2.0


@functools.cache
def doubles(x: Tensor) -> Tensor:
    return x * 2


def memoizes(x: Tensor) -> Tensor:
    return x + table(8)  # here


def does_not_memoize(x: Tensor) -> Tensor:
    return x + table.__wrapped__(8)


def memoizes_its_input(x: Tensor) -> Tensor:
    return x + doubles(x)  # here


def asks_with_no_memo() -> None:
    """Another test may have called the function, as its way out says."""
    table.cache_clear()
    captures(memoizes, X)()


MEMO = "python_state/effects/memos.py:_refusal"
refuses("side effect", MEMO).when(
    asks_with_no_memo, captured(does_not_memoize, X), once_before(memoizes, X), at=memoizes
)
refuses("side effect", MEMO).when(
    captures(memoizes_its_input, X),
    captured(lambda x: x + doubles.__wrapped__(x), X),
    "its argument is a tensor of the program",
)

MEMOIZED = [functools.cache(len)]


def memoizes_out_of_sight(x: Tensor) -> Tensor:
    return x * MEMOIZED[0]("ab")  # here


refuses("side effect", "python_state/effects/memos.py:_check_uncalled").when(
    captures(memoizes_out_of_sight, X),
    captured(lambda x: x * len("ab"), X),
)

COUNT: list[object] = []


def counts(x: Tensor) -> Tensor:
    COUNT.append(object())  # here
    return x * 2


def calls_what_counts() -> None:
    """A callable runs the first call as Python, for what only that one does; a cut does not."""
    foretrace.capture(counts, (X,)).cut("aten")(X)


class Hidden:
    """Its list goes by a name that no code mentions."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []


HIDDEN = Hidden()


def fills_what_is_hidden(x: Tensor) -> Tensor:  # here
    operator.attrgetter("tpek"[::-1])(HIDDEN).append(x * 2)
    return x


def follow_first_call() -> None:
    """What its first call sets up is there before it is compiled."""
    TABLES.clear()
    looks_up(X)
    compiled(looks_up, X)()


refuses("side effect", "ir/program/call_requirements.py:check_repeatable").when(
    calls_what_counts, compiled(returns, X), follow_first_call, at=counts
)
refuses("side effect", "python_state/effects/state_inputs.py:check_first_call").when(
    captures(fills_what_is_hidden, X), compiled(returns, X), follow_first_call
)


class Latest:
    """A tensor that is in a set and a list, too."""

    def __init__(self) -> None:
        self.state = torch.ones(8)
        self.members, self.listed = {self.state}, [self.state]


LATEST = Latest()


def adds_a_set(x: Tensor) -> Tensor:  # here
    found = torch.stack([*LATEST.members]).sum()
    LATEST.state = x.sum(0)
    return found * LATEST.state


def adds_a_list(x: Tensor) -> Tensor:
    found = torch.stack([*LATEST.listed]).sum()
    LATEST.state = x.sum(0)
    return found * LATEST.state


def capture_with_the_first() -> None:
    (LATEST.state,) = LATEST.members  # as before any call
    foretrace.capture(adds_a_set, (X,))


refuses("side effect", "python_state/effects/state_inputs.py:_elsewhere").when(
    capture_with_the_first, captured(adds_a_list, X), at=adds_a_set
)


def leaves_grad_mode(x: Tensor) -> Tensor:
    torch.set_grad_enabled(mode=False)  # here
    return x * 2


def puts_grad_mode_back(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


refuses("side effect", "session/patches/global_switches.py:_check_unswitched").when(
    captures(leaves_grad_mode, X), captured(puts_grad_mode_back, X)
)


def makes_doubles(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return torch.ones(8) + x  # here
    finally:
        torch.set_default_dtype(torch.float32)


def makes_doubles_by_name(x: Tensor) -> Tensor:
    return torch.ones(8, dtype=torch.float64) + x


def under_doubles() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        captured(lambda x: torch.ones(8) + x, X)()
    finally:
        torch.set_default_dtype(torch.float32)


refuses("side effect", "tracer/recorder/dispatch.py:switched_refusal").when(
    captures(makes_doubles, X), under_doubles, captured(makes_doubles_by_name, X)
)


def counts_threads(x: Tensor) -> Tensor:
    set_num_threads(torch.get_num_threads())  # here
    return x * 2


def counts_threads_of_torch(x: Tensor) -> Tensor:
    torch.set_num_threads(torch.get_num_threads())
    return x * 2


refuses("side effect", "session/patches/global_switches.py:_by_another_name").when(
    captures(counts_threads, X), captured(lambda x: x * 2, X), captured(counts_threads_of_torch, X)
)


class Rebinds(nn.Module):
    """Binds a buffer to a tensor of another type."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.scale = x.amax(0)  # here
        return x


class RebindsAlike(Rebinds):
    """The same, with a buffer of that type from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.zeros(8)


refuses("side effect", "lowering/cuts/writeback.py:_check_bound").when(
    exports(Rebinds(), X), exported(RebindsAlike(), X)
)


class BindsALeaf(nn.Module):
    """From the second call on, eager's buffer is a leaf of autograd."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        old = self.scale
        self.scale = self.scale.mul(2).detach().requires_grad_()  # here
        return x * old


class BindsNone(BindsALeaf):
    def forward(self, x: Tensor) -> Tensor:
        old = self.scale
        self.scale = self.scale.mul(2).clamp(max=1)
        return x * old


refuses("followed write", "lowering/cuts/writeback.py:_check_bound").when(
    exports(BindsALeaf(), X),
    exported(BindsNone(), X),
    lambda: same(foretrace.capture(BindsALeaf(), (X,)).cut("export")(X), BindsALeaf()(X)),
)


class ReadsWhatHasAHistory(nn.Module):
    """From the second call on, the buffer requires grad, and so would what reads it in a file."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            noise = self.scale.sigmoid()  # here
        self.scale.mul_(self.w)
        return x * noise


class ReadsWhatHasNone(ReadsWhatHasAHistory):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            noise = self.scale.sigmoid()
        self.scale.mul_(self.w.detach())
        return x * noise


refuses("followed write", "lowering/cuts/writeback.py:_check_history").when(
    exports(ReadsWhatHasAHistory(), X),
    exported(ReadsWhatHasNone(), X),
    captured(ReadsWhatHasAHistory(), X),
)


def reshapes(x: Tensor) -> Tensor:
    return x.t_() * 2  # here


def returns_reshaped(x: Tensor) -> Tensor:
    return x.t() * 2


def reshaped_by_the_cut() -> None:
    ours, eager = X.clone(), X.clone()
    cut = foretrace.capture(reshapes, (X.clone(),)).cut("export")
    same([cut(ours), ours], [reshapes(eager), eager])


refuses("side effect", "frontends/program/other_graphs.py:_refuse_shape").when(
    exports(reshapes, X), exported(returns_reshaped, X), reshaped_by_the_cut
)


def reshapes_a_leaf(w: Tensor) -> Tensor:
    with torch.no_grad():
        w.t_()  # here
    return w * 2


def a_view_of_a_leaf(w: Tensor) -> Tensor:
    return w.t() * 2


LEAF = X.clone().requires_grad_()
refuses("side effect", "tracer/functionalization/in_place_checks.py:reshape").when(
    captures(reshapes_a_leaf, LEAF), captured(a_view_of_a_leaf, LEAF)
)


def moves(x: Tensor) -> Tensor:
    return x.as_strided_((2,), (1,), 1) * 2  # here


def moved(x: Tensor) -> Tensor:
    return x.as_strided((2,), (1,), 1) * 2


refuses("side effect", "session/run/mutations.py:_not_written_back").when(
    captures(moves, X.clone()), captured(moved, X)
)


def detaches(x: Tensor) -> Tensor:
    x.detach_()  # here
    return x * 2


def not_a_leaf() -> Tensor:
    return torch.randn(6, 8, requires_grad=True) * 2


refuses("side effect", "session/run/mutations.py:_not_written_back").when(
    captures(detaches, not_a_leaf()), captured(lambda x: x.detach() * 2, X)
)


class Tag:
    """No data that a graph could give."""

    factor = 3


def tags(x: Tensor) -> Tensor:
    x.tag = Tag()  # type: ignore[attr-defined]  # here
    return x * 2


def tags_once(x: Tensor) -> Tensor:
    if not hasattr(x, "tag"):
        x.tag = Tag()  # type: ignore[attr-defined]
    return x * x.tag.factor  # type: ignore[attr-defined,no-any-return]


refuses("side effect", "session/run/tensor_attributes.py:check_attributes_kept").when(
    captures(tags, X), captured(lambda x: x * 2, X), once_before(tags_once, X.clone())
)


def sets_data(x: Tensor) -> Tensor:
    x.data = x * 2  # here
    return x


def copies(x: Tensor) -> Tensor:
    return x.copy_(x * 2)


refuses("side effect", "operators/abstract_tensors/abstract_tensor.py:_set_data").when(
    exports(sets_data, X), captured(lambda x: x.clone().copy_(x * 2), X)
)


def sets_wider(x: Tensor) -> Tensor:
    x.data = x.double()  # here
    return x


refuses("side effect", "tracer/functionalization/in_place_checks.py:_check_takes").when(
    captures(sets_wider, X), captured(lambda x: x.clone().copy_(x.double()), X)
)


def starts_to_follow(x: Tensor) -> Tensor:
    return x.requires_grad_() * 2  # here


refuses("side effect", "operators/abstract_tensors/abstract_tensor.py:requires_grad_").when(
    exports(starts_to_follow, X), captured(lambda x: x * 2, X.clone().requires_grad_())
)


def writes_one(a: Tensor, b: Tensor) -> Tensor:
    return a.add_(1) * b.sum()  # here


def writes_and_views(a: Tensor) -> Tensor:
    return a.add_(1) * a[0].sum()


def follow_clone() -> None:
    same(
        foretrace.capture(writes_one, (X, X[0].clone())).cut("export")(X.clone(), X[0].clone()),
        writes_one(X.clone(), X[0].clone()),
    )


refuses("aliased inputs", "session/run/aliased_inputs.py:check_shared_memory").when(
    captures(writes_one, X, X[0].view(torch.int32)), follow_clone
)


def writes_a_history(a: Tensor, b: Tensor, w: Tensor) -> Tensor:  # here
    a.mul_(w)
    return a * b


def lets_one_be_followed(a: Tensor, b: Tensor) -> Tensor:  # here
    b.detach().add_(1)
    a.requires_grad_()
    return a * b


ONE_HISTORY = "session/run/aliased_inputs.py:check_one_history"
refuses("aliased inputs", ONE_HISTORY).when(
    captures(writes_a_history, X, X.detach(), torch.ones(8, requires_grad=True)),
    lambda: writes_to_views(X.clone()),
    at=writes_a_history,
)
refuses("aliased inputs", ONE_HISTORY).when(
    captures(lets_one_be_followed, X, X.detach()),
    captured(lambda a, b: lets_one_be_followed(a.clone(), b.clone()), X, X.detach()),
    at=lets_one_be_followed,
)


def writes_and_follows(x: Tensor) -> Tensor:
    x.add_(1)
    x.requires_grad_()
    return x * 2  # here


def follows_a_written_clone(x: Tensor) -> Tensor:
    y = x.clone().add_(1)
    return y.requires_grad_() * 2


refuses(
    "followed write", "tracer/functionalization/autograd_leaves.py:check_unwritten_leaves"
).when(
    captures(writes_and_follows, X),
    captured(lambda x: x.add(1) * 2, X.clone().requires_grad_()),
    captured(follows_a_written_clone, X),
)


def writes_to_views(x: Tensor) -> None:
    """Views of one tensor have one history."""
    w, pairs = torch.ones(8, requires_grad=True), [(y, y[:]) for y in (x.clone(), x.clone())]
    ours = foretrace.capture(writes_a_history, (x, x[:], w)).cut("export")
    same(ours(*pairs[0], w), writes_a_history(*pairs[1], w))
    same(*[[each.requires_grad for each in pair] for pair in pairs])


def holds(loop: list[Any]) -> Tensor:
    return loop[0] * 2


LOOP: list[Any] = [X]
LOOP.append(LOOP)
refuses("nested in itself", "ir/pydata/containers.py:_nested_in_itself").when(
    captures(holds, LOOP), captured(holds, [X]), at=None
)


def returns_bits(x: Tensor) -> Tensor:
    x.add_(1)  # here
    return x.view(torch.int32)


def returns_a_part_with_a_history(x: Tensor, w: Tensor) -> Tensor:
    part = x.unsafe_split(3)[0]
    part.mul_(w)  # here
    return part


def returns_part_of_a_copy(x: Tensor, w: Tensor) -> Tensor:
    part = x.clone().unsafe_split(3)[0]
    part.mul_(w)
    return part


def returns_copied_bits(x: Tensor) -> Tensor:
    y = x + 1
    return y.view(torch.int32).clone()


refuses("aliased outputs", "session/run/outputs.py:_created").when(
    captures(returns_bits, X), captured(returns_copied_bits, X)
)
refuses("aliased outputs", "session/run/outputs.py:_created").when(
    captures(returns_a_part_with_a_history, X, HALF), captured(returns_part_of_a_copy, X, HALF)
)


def returns_a_view_of_other_memory(x: Tensor) -> Tensor:
    x.data = torch.ones_like(x)
    return x[0]  # here


def returns_a_copy_of_the_view(x: Tensor) -> Tensor:
    x.data = torch.ones_like(x)
    return x[0].clone()


refuses("aliased outputs", "session/run/outputs.py:_check_not_moved").when(
    captures(returns_a_view_of_other_memory, X), captured(returns_a_copy_of_the_view, X)
)


def returns_two_histories(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[:3].detach()
    row.mul_(w)  # here
    return row, y


def returns_another_memory(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    row = y[:3].detach()
    row.mul_(w)
    return row, y.clone()


refuses("aliased outputs", "session/run/mutations.py:check_together").when(
    captures(returns_two_histories, X, HALF), captured(returns_another_memory, X, HALF)
)


class KeepsARow(nn.Module):
    """A buffer is bound to a row of an argument that is written, or to a clone of it."""

    def __init__(self, *, clone: bool) -> None:
        super().__init__()
        self.clone = clone
        self.register_buffer("row", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        row = x[0]  # here
        self.row = row.clone() if self.clone else row
        return x * 2


def follow_a_row() -> None:
    keeps = KeepsARow(clone=True)
    same(foretrace.capture(keeps, (X,)).cut("export")(X.clone()), keeps(X.clone()))


refuses("aliased outputs", "session/run/mutations.py:_rebound").when(
    captures(KeepsARow(clone=False), X), follow_a_row
)


class TwoNames(nn.Module):
    """Two names of one buffer, of which a call binds one; or of two buffers."""

    def __init__(self, *, clone: bool) -> None:
        super().__init__()
        self.register_buffer("now", torch.zeros(6, 8))
        self.register_buffer("then", self.now.clone() if clone else self.now)

    def forward(self, x: Tensor) -> Tensor:
        self.then = self.now + x  # here
        return x * 2


refuses("aliased inputs", "frontends/program/other_graphs.py:check_shapes_stay").when(
    exports(TwoNames(clone=False), X), exported(TwoNames(clone=True), X)
)


def writes_where_rows_meet(x: Tensor) -> Tensor:
    y = (x * 1).as_strided((3, 2), (1, 1))
    y.square_()  # here
    return y


refuses("overlapping memory", "tracer/functionalization/self_overlap.py:overlapping").when(
    captures(writes_where_rows_meet, X),
    captured(lambda x: (x * 1).as_strided((3, 2), (1, 1)).clone().square_(), X),
)


def reads_rows_that_are_one(x: Tensor) -> Tensor:
    y = x.expm1().expand(3, 4)
    y.unsqueeze_(0)  # here
    return y * 1


refuses("overlapping memory", "autograd/eager_history/history_ops.py:make_copy").when(
    cuts(reads_rows_that_are_one, ROW, cut="export"),
    captured(lambda x: x.expm1().expand(3, 4).clone().unsqueeze_(0) * 1, ROW),
)


class Steps(nn.Module):
    """Computes with the number of its call, or with whether it is the first."""

    def __init__(self, *, most: int) -> None:
        super().__init__()
        self.steps, self.most = 0, most

    def forward(self, x: Tensor) -> Tensor:
        self.steps = min(self.steps + 1, self.most)  # here
        return x * self.steps


class StepsInABuffer(nn.Module):
    """The same, where a graph has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return x * self.steps


def exported_twice() -> None:
    ran, ours = StepsInABuffer(), StepsInABuffer()
    graph = foretrace.export(ours, (X,)).module()
    for _ in range(2):
        same(graph(X), ran(X))


def exported_after_its_first_call() -> None:
    module = Steps(most=1)
    module(X)
    graph = foretrace.export(module, (X,)).module()
    for _ in range(2):
        same(graph(X), module(X))


refuses("side effect", "frontends/torch_compat/stateless_check.py:check_settled").when(
    exports(Steps(most=9), X), exported_twice, exported_after_its_first_call
)


def sets_a_list_of_a_result(x: Tensor) -> Tensor:
    y = x * 2  # here
    y.parts = [x + 1]
    return y


def gives_the_list_beside(x: Tensor) -> tuple[Tensor, list[Tensor]]:
    return x * 2, [x + 1]


refuses("side effect", "session/run/outputs.py:_mark").when(
    captures(sets_a_list_of_a_result, X), captured(gives_the_list_beside, X)
)


LAZY = nn.LazyLinear(3)
LAZY(X)


def creates_a_lazy_module(x: Tensor) -> Tensor:
    return nn.LazyLinear(3)(x)  # here


def calls_one_that_was_called(x: Tensor) -> Any:
    return LAZY(x)


def gives_the_sizes(x: Tensor) -> Tensor:
    layer = nn.Linear(8, 3)
    return layer(x).abs().sum() * 0  # its weights are drawn: a sum of them may be -0.0 then


refuses("unsupported", "session/patches/torch_patches.py:_lazy").when(
    captures(creates_a_lazy_module, X),
    captured(calls_one_that_was_called, X),
    captured(gives_the_sizes, X),
)
