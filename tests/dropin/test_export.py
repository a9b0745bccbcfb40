"""foretrace.export: torch's own type, its consumers, and eager's bits."""

import copy
import io
import queue
from typing import Any

import pytest
import torch
from torch import nn
from torch.export.graph_signature import OutputKind

import foretrace
from tests.programs import CASES, Case
from tests.support import exporting
from tests.support.compare import same_as_eager
from tests.support.turns import one_in

# torch warns of this once, eager or not
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

GRADIENT_ELSEWHERE = {"closes_over_tensors", "partial_function", "method_of_an_object"}
"""A tensor reached by closure becomes a parameter of the exported program; its gradient is there"""
SIZES_ARE_TUPLES = {"shapes_returned"}
"""As in what torch.export gives"""
NOT_EXPORTED = {
    "data_of_an_input_written_after_it_was_saved": "side effect",
    "a_leaf_written_by_way_of_a_part_of_it": "side effect",
    "views_of_written_memory_that_begins_elsewhere": "unsupported",
    "dataclass_in": "unknown container", "dataclass_out": "unknown container",
    "registered_without_keys": "unknown container",
    "types_in": "unknown value", "set_of_constants": "unknown value",
    "generator_of_its_own": "generator",
    "function_given_a_captured_tensor_twice": "autograd.Function",
    "function_behind_what_is_drawn": "autograd.Function",
    "function_fills_room_step_by_step": "autograd.Function",
    "function_writes_and_the_argument_keeps_its_history": "autograd.Function",
    "function_writes_to_a_view": "autograd.Function",
    "function_marks_what_has_views": "autograd.Function",
    "functions_under_levels": "autograd.Function",
    "functions_with_generated_rules": "autograd.Function",
    "asked_inside_a_function": "autograd.Function",
    "asked_inside_a_function_inside_another": "autograd.Function",
    "gradient_in_the_forward_of_a_function": "autograd.Function",
    "gradient_in_the_backward_of_a_function": "autograd.Function",
    "gradient_of_a_function_twice": "autograd.Function",
    "gradient_of_a_function_once": "autograd.Function",
    "returned_itself_after_writes_unseen": "side effect",
    "unpacked_inside": "hook",
    "unpacked_twice_inside": "hook",
    "a_leaf_made_under_hooks": "hook",
    "unpacked_in_place": "hook",
    "drawn_over_memory_with_gaps": "unsupported",  # `random_(from, to)` is no Python as text
}  # fmt: skip

OF_THEIR_OWN = {*GRADIENT_ELSEWHERE, *SIZES_ARE_TUPLES, *NOT_EXPORTED}
BY_NAME = [
    pytest.param(case, id=f"{case.section}.{name}")
    for name, case in CASES.items()
    if "export" in case.cuts
]


def apart(param: Any) -> bool:
    """Whether a file gives something else than the export cut, or may refuse."""
    (case,) = param.values
    return bool(case.may_refuse) or case.name in OF_THEIR_OWN or "hook" in case.name


ZOO = [
    *filter(apart, BY_NAME),
    *one_in(12, [each for each in BY_NAME if not apart(each)], turn=1),
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", ZOO)
@pytest.mark.filterwarnings("ignore:the graph is for inputs", "ignore:the graph has no hooks")
def test_zoo_as_eager(case: Case, request: pytest.FixtureRequest) -> None:
    """Outputs, gradients, mutations and aliasing of `.module()` are those of eager."""
    subject, name = case.subject(4), request.node.callspec.id.rpartition(".")[2]
    run = {"loss": case.loss, "cuts": ("export",), "capture": exporting.capture, "versions": False}
    try:
        same_as_eager(subject.fn, subject.args, subject.kwargs, **run)  # type: ignore[arg-type]
    except foretrace.Refusal as refusal:
        if refusal.kind == NOT_EXPORTED.get(name):
            return
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")
    except AssertionError as difference:
        dropped = "hook" in name and "gradient" in str(difference)
        elsewhere = name in GRADIENT_ELSEWHERE and "gradient" in str(difference)
        tuples = name in SIZES_ARE_TUPLES and "Size in eager, tuple in the cut" in str(difference)
        if not (elsewhere or tuples or dropped):
            raise


class Everything(nn.Module):
    """Parameters tied and unused, buffers of both kinds, constants, writes, None and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.again, self.unused = self.first, nn.Linear(2, 2)
        self.scale, self.fixed = nn.Parameter(torch.ones(4)), torch.arange(4.0)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("offset", torch.ones(4), persistent=False)

    def forward(self, input, state, *, factor=1):
        self.calls.add_(1)
        with torch.no_grad():
            self.scale.mul_(0.5)
            frozen = self.first(input)
        state["seen"].add_(1)
        hidden = self.norm(self.again(input)) * factor + self.offset + self.fixed * self.scale
        made = hidden + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"made": made, "rest": (None, factor, frozen, input, state["seen"])}


def everything() -> tuple[nn.Module, tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    return Everything(), (torch.randn(6, 4), {"seen": torch.randn(3)})


def reloaded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def trained(module, args, kwargs):
    """Outputs, gradients and state after one step."""
    out = module(*copy.deepcopy(args), **kwargs)
    out["made"].square().sum().backward()
    named = [*module.named_parameters(), *module.named_buffers()]
    found = [out["made"], *(t for t in out["rest"] if isinstance(t, torch.Tensor))]
    found += [t for _, t in named]
    found += [t.grad for _, t in named if t.grad is not None]
    return [t.detach() for t in found], sorted(n for n, t in named if t.grad is not None)


@pytest.mark.parametrize("again", [False, True], ids=["fresh", "reloaded"])
def test_everything_trains(again):
    """One step: outputs, parameters, buffers and gradients are eager's bits."""
    module, args = everything()
    program = foretrace.export(module, args, {"factor": 3})
    twin = copy.deepcopy(module)
    program = reloaded(program) if again else program
    (eager, grads), (ours, found) = (
        trained(each, args, {"factor": 3}) for each in (twin, program.module())
    )
    assert found == grads
    for left, right in zip(eager[:4], ours[:4], strict=True):
        assert torch.equal(left, right)
    named = dict(twin.named_parameters()), dict(program.module().named_parameters())
    for name, parameter in named[0].items():
        if parameter.grad is not None:
            assert torch.equal(parameter.grad, named[1][name].grad), name
        assert torch.equal(parameter, named[1][name]), name


def test_signature_as_torch():
    """The same inputs, by name, kind and target, in the same order; the same specs."""
    module, args = everything()
    ours, torchs = (
        export(copy.deepcopy(module), args, kwargs={"factor": 3})
        for export in (foretrace.export, exporting.of_torch)
    )
    assert ours.graph_signature.input_specs == torchs.graph_signature.input_specs
    assert ours.call_spec == torchs.call_spec
    assert ours.state_dict.keys() == torchs.state_dict.keys()
    assert ours.constants.keys() == torchs.constants.keys()
    assert [entry.fqn for entry in ours.module_call_graph] == [
        entry.fqn for entry in torchs.module_call_graph
    ]
    kinds = [spec.kind for spec in ours.graph_signature.output_specs]
    assert kinds.count(OutputKind.BUFFER_MUTATION) == 4
    assert kinds.count(OutputKind.USER_INPUT_MUTATION) == 1
    user = [spec for spec in ours.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"]
    assert len(user) == len(torchs.graph_signature.output_specs)


@pytest.mark.parametrize("use", [
    lambda program, args: program.run_decompositions().module(),
    lambda program, args: torch.export.unflatten(program),
    lambda program, args: copy.deepcopy(program).module(),
    lambda program, args: reloaded(program.run_decompositions()).module(),
], ids=["run_decompositions", "unflatten", "deepcopy", "decomposed and reloaded"])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_consumers(use):
    """What torch's own tools make of it computes the same."""
    module, args = everything()
    twin = copy.deepcopy(module).eval()
    program = foretrace.export(module.eval(), args, {"factor": 3})
    with torch.no_grad():
        made = use(program, args)(*copy.deepcopy(args), factor=3)["made"]
        expected = twin(*copy.deepcopy(args), factor=3)["made"]
    assert torch.allclose(made, expected)


class Asks(nn.Module):
    """Looks at data, unless it is told that it is exported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_exporting() and bool((x > 0).all()):
            return x * 2
        return x * 3


def test_a_program_that_had_to_be_told_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="is_exporting.. true.*asks for a number"):
        exported = foretrace.export(Asks(), (torch.ones(2),))
    assert torch.equal(exported.module()(torch.ones(2)), torch.full((2,), 3.0))


class Counts(nn.Module):
    """Writes a buffer, counts in Python, tells `note` of the run; then does what `last` does.

    `note` puts it where no run is undone.
    """

    def __init__(self, last, note) -> None:
        super().__init__()
        self.last, self.note, self.count = last, note, 0
        self.kept: set[torch.Tensor] = set()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.note(torch.compiler.is_exporting())
        self.count += 1
        self.calls.add_(1)
        return self.last(self, x * self.calls)


def taken(runs: queue.SimpleQueue[bool]) -> list[bool]:
    """What is in a queue."""
    return [runs.get() for _ in range(runs.qsize())]


@pytest.mark.filterwarnings("ignore:captured with")
def test_the_second_run_is_as_if_it_were_the_first() -> None:
    """What the first run wrote is not there, and no one is told of an export afterwards."""
    runs = queue.SimpleQueue[bool]()

    def asks(_, x):
        return x if torch.compiler.is_exporting() or bool(x.sum() > 0) else -x

    module = Counts(asks, runs.put)
    program = foretrace.export(module, (torch.ones(2),))
    first, *others = taken(runs)  # more often, as it counts its calls in Python
    assert (first, {*others}) == (False, {True})
    assert (module.calls, module.count) == (0, 0)
    assert not torch.compiler.is_exporting()
    assert not torch.compiler.is_compiling()
    run = program.module()
    assert [float(run(torch.ones(2))[0]) for _ in range(3)] == [1, 2, 3]


class Held(nn.Module):
    """Keeps a tensor in a set: a side effect, whoever is told of what."""

    def forward(self, owner: Counts, x: torch.Tensor) -> torch.Tensor:
        owner.kept.add(x)
        return x


REFUSED = {
    "data-dependent": (lambda _, x: x * (x * 1j).sum().item(), [False, True]),
    "program raised": (lambda _, x: x @ torch.ones(7), [False, True]),
    "side effect": (Held(), [False]),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("error")
def test_what_neither_run_can_do(kind: str) -> None:
    """The first refusal is given, without a warning; only some are tried again."""
    last, expected = REFUSED[kind]
    runs = queue.SimpleQueue[bool]()
    module = Counts(last, runs.put)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(module, (torch.ones(2),))
    assert (caught.value.kind, taken(runs)) == (kind, expected)
    assert (module.calls, module.count) == (0, 0)
    assert not torch.compiler.is_exporting()


class Recurs(nn.Module):
    """Binds its buffer to what autograd follows, after it has used the old tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.1, 0.4, 4))
        self.register_buffer("state", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.state * x * self.state.exp()
        self.state = torch.tanh(self.state * self.w + x)
        return y


def test_a_gradient_goes_through_the_state_of_several_calls() -> None:
    """What a call has saved of the old state is as it was, though a file copies into the buffer."""
    x = torch.randn(4)
    eager, module = Recurs(), foretrace.export(Recurs(), (x,)).module()
    for each in (eager, module):
        sum(each(x).sum() for _ in range(3)).backward()
    assert torch.equal(module.get_parameter("w").grad, eager.w.grad)
    assert torch.equal(module.get_buffer("state"), eager.state)


@pytest.fixture(scope="module")
def returns_operands() -> Any:
    """An operator that writes to its operands and returns them, which its schema does not say."""
    library = torch.library.Library("tests_export", "FRAGMENT")
    library.define("shifted(Tensor(a!) x, Tensor(b!) z) -> (Tensor, Tensor, Tensor)")

    def on_cpu(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.add_(5), z.mul_(3), x + z

    library.impl("shifted", on_cpu, "CPU")
    torch.library.register_fake("tests_export::shifted", lambda x, z: (x, z, x + z), lib=library)
    yield torch.ops.tests_export.shifted
    library._destroy()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("route", ["export", "compile", "graph"])
def test_an_operator_that_returns_what_it_writes_to(
    returns_operands: Any, own: bool, route: str
) -> None:
    class Shifts(nn.Module):
        def forward(self, x: torch.Tensor, z: torch.Tensor) -> Any:
            y = x * 2 if own else x
            first, second, both = returns_operands(y, z)
            first.mul_(3)
            return first, second, both, y

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(3), torch.full((3,), 2.0)

    if route == "export":
        ours = foretrace.export(Shifts(), operands()).module()
    else:
        backend = "eager" if route == "compile" else lambda graph, inputs: graph
        ours = foretrace.compile(Shifts(), fullgraph=True, backend=backend)
    there, here = operands(), operands()
    eager, found = Shifts()(*there), ours(*here)
    assert all(map(torch.equal, (*eager, *there), (*found, *here)))
    assert found[0] is found[3]
    assert [found[1] is here[1], found[0] is here[0]] == [True, not own]


@pytest.mark.parametrize("route", ["export", "aten", "joint", "compile"])
def test_numbers_of_data_that_a_branch_alone_has(route: str) -> None:
    def program(a: torch.Tensor, one: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        def masked(x: torch.Tensor) -> torch.Tensor:
            return x[x > 1].sum() * one.item()

        def part(x: torch.Tensor) -> torch.Tensor:
            size = one.item()
            torch._check(size >= 2)
            torch._check(size < 8)
            return x[:size].sum() * size

        return torch.cond(a, masked, part, (x,)) * 2

    def call(answer: bool, number: int) -> tuple[torch.Tensor, ...]:
        x = torch.arange(10.0).requires_grad_(route == "joint")
        return torch.tensor(answer), torch.tensor([number]), x

    if route == "compile":
        ours = foretrace.compile(program, fullgraph=True)
    else:
        named = {"loss": 0} if route == "joint" else {}
        ours = foretrace.capture(program, call(True, 4)).cut(route, **named)
    for answer, number in ((True, 4), (False, 4), (True, 6), (False, 2)):
        found = ours(*call(answer, number))
        args = call(answer, number)
        eager = program(*args)
        if route == "joint":
            assert torch.equal(found[1]["x"], torch.autograd.grad(eager, args[2])[0])
        assert torch.equal(found[0] if route == "joint" else found, eager)


@pytest.mark.filterwarnings("ignore:.*LeafSpec")
def test_a_constant_has_each_name_that_the_module_has_for_it() -> None:
    class Inner(nn.Module):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.table = table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table

    class Outer(Inner):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__(table)
            self.inner = Inner(table)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * self.table

    module, x = Outer(torch.randn(3)), torch.randn(3)
    ours, theirs = (export(module, (x,)) for export in (foretrace.export, torch.export.export))
    assert list(ours.constants) == list(theirs.constants) == ["table", "inner.table"]
    assert ours.graph_signature == theirs.graph_signature
    assert torch.equal(torch.export.unflatten(ours)(x), module(x))


def test_an_assertion_has_the_words_of_torch() -> None:
    class Sized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = x.item()
            torch._check(size >= 4)
            torch._check(size <= 7)
            return torch.ones(size, 4)

    for export in (foretrace.export, torch.export.export):
        module = export(Sized(), (torch.tensor(5),)).module()
        assert module(torch.tensor(6)).shape == (6, 4)
        for size, words in ((30, r"u\d+ <= 7"), (3, r"u\d+ >= 4")):
            with pytest.raises(
                RuntimeError, match=f"Runtime assertion failed for expression {words}"
            ):
                module(torch.tensor(size))


class Switches(nn.Module):
    """Sets a fact of its buffer; it asks for an id, so that tensors stay where they are."""

    def __init__(self, switch: Any) -> None:
        super().__init__()
        self.switch = switch
        self.register_buffer("offset", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if id(x) == id(self.offset):
            return x
        self.switch(self.offset)
        return x + self.offset


SWITCHES = {
    "requires_grad_": lambda t: t.requires_grad_(),
    "requires_grad": lambda t: setattr(t, "requires_grad", True),
    "data": lambda t: setattr(t, "data", torch.zeros(3)),
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_what_no_file_has_of_tensors_that_stay_in_place(switch: str) -> None:
    module, x = Switches(SWITCHES[switch]), torch.randn(3)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.export(module, (x,))
    assert caught.value.kind == "side effect"
    assert not module.offset.requires_grad
    assert torch.equal(module.offset, torch.ones(3))


class Turned(nn.Module):
    """Calls operators with capitals in their names."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mT @ x.mH.mT + x.T.sum()


class Named(nn.Module):
    """Its arguments are called as the programs that an operator holds are."""

    def forward(self, input, true_graph, body_graph):
        x = input + true_graph[0] + true_graph[1]
        for _ in range(2):
            x = torch.cond(x.sum() > 0, lambda x: x * 2.0, lambda x: x + 2.0, [x])
        return x + body_graph[0]


class Attending(nn.Module):
    """Has a submodule whose name begins as torch takes names of modules to begin."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.self_attn(x)


class Multiplied(nn.Module):
    """An argument is called as an operator is."""

    def forward(self, mul: torch.Tensor) -> torch.Tensor:
        return mul * mul


@pytest.mark.parametrize("module", [Turned, Named, Attending, Multiplied])
def test_nodes_are_called_as_torchs(module: type[nn.Module]) -> None:
    x = torch.randn(3, 3)
    program = module(), (x, (x, x), (x,)) if module is Named else (x,)
    one, other = (
        [
            (node.name, str(node.target), node.meta.keys() - {"foretrace"})
            for node in tool(*program).graph.nodes
        ]
        for tool in (torch.export.export, foretrace.export)
    )
    assert one == other
