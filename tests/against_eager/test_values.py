"""Questions about values that are answered by yes or no: by the example, guarded and asserted."""

import copy
import io
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.support import models
from tests.support.compare import same_as_eager
from tests.support.turns import some


def masked(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 2
    return y.sum() if mask.all() else (y * mask).sum()


def weighted(w: Tensor) -> Tensor:
    return w.exp() if w.detach().abs().max() > 1 else w.sin()


YES, NO = torch.ones(3, dtype=torch.bool), torch.tensor([True, False, True])
X = torch.randn(3, requires_grad=True)


@pytest.mark.parametrize("mask", [YES, NO], ids=["yes", "no"])
def test_either_branch_is_eagers(mask: Tensor) -> None:
    report = same_as_eager(masked, (X, mask), {}, loss=0)
    assert report.gradients


def test_another_answer_is_refused_with_the_line() -> None:
    program = foretrace.capture(masked, (X, YES))
    cut = program.cut("aten")
    assert torch.equal(cut(X, YES.clone()), masked(X, YES))
    with pytest.raises(foretrace.Refusal, match="mask is False now, and was True") as refused:
        cut(X, NO)
    assert "y.sum() if mask.all()" in str(refused.value)


def test_the_answer_may_follow_from_what_the_program_wrote() -> None:
    def fn(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2 if (x > 0).all() else x * 3

    cut = foretrace.capture(fn, (torch.zeros(2),)).cut("aten")
    assert torch.equal(cut(torch.zeros(2)), torch.full((2,), 2.0))
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(torch.full((2,), -3.0))


def test_parameters_are_asked_as_they_are_at_the_call() -> None:
    net = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        net.weight.fill_(0.5)
    x = torch.randn(1, 2)

    def fn(x: Tensor) -> Tensor:
        return weighted(net.weight) * net(x)

    cut = foretrace.capture(fn, (x,)).cut("export")
    assert torch.equal(cut(x), fn(x))
    with torch.no_grad():
        net.weight.fill_(5.0)
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(x)


def test_a_complex_number_of_inputs_is_not_guarded() -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(lambda x: x * x.cfloat().sum().item(), (torch.randn(3),))
    assert refused.value.kind == "data-dependent"


def test_without_it_the_refusal_names_it() -> None:
    with pytest.raises(foretrace.Refusal, match='values="guard"'):
        foretrace.capture(masked, (X, YES), values="refuse")


def test_open_sizes_and_values_together() -> None:
    def fn(x: Tensor) -> Tensor:
        return x * 2 if (x > torch.arange(x.shape[0])).all() else x * 3

    program = foretrace.capture(fn, (torch.full((4,), 9.0),), dynamic_shapes=True, values="guard")
    cut = program.cut("aten")
    x = torch.full((6,), 9.0)
    assert torch.equal(cut(x), fn(x))
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(torch.full((12,), 9.0))


def test_a_compiled_callable_captures_each_answer_once() -> None:
    compiled = foretrace.compile(masked, fullgraph=True)
    for mask in (YES, NO, YES, NO):
        assert torch.equal(compiled(X, mask), masked(X, mask))
    (again,) = compiled.recaptures
    assert "mask is False now, and was True" in str(again)


# ---- the graphs themselves ----------------------------------------------------------------------


def asks_much(x: Tensor, mask: Tensor) -> Tensor:
    y = x.sin()
    if torch.allclose(y, y.clone()) and not torch.equal(y, y + 1):
        y = y * 2
    return y.sum() if mask.all() else (y * mask).sum()


SAYS = "(?s)mask is False now, and was True in the capture.* if mask.all"


@pytest.mark.parametrize("kind", ["export", "aten", "joint"])
def test_a_graph_module_asserts_what_it_relied_on(kind: str) -> None:
    module = foretrace.capture(asks_much, (X, YES)).cut(kind, loss=0).graph_module
    inputs = X.detach().requires_grad_(kind == "export")
    assert torch.equal(module(inputs, YES)[0], asks_much(X, YES))
    with pytest.raises(RuntimeError, match=SAYS):
        module(inputs, NO)


def test_the_forward_half_asserts() -> None:
    forward, backward = foretrace.capture(asks_much, (X, YES)).pair(loss=0)
    asserts = ["_assert_async" in name for name in forward.nodes]
    assert sum(asserts) == 3
    assert not any("_assert_async" in name for name in backward.nodes)
    with pytest.raises(RuntimeError, match=SAYS):
        forward(X, NO)


class Asks(nn.Module):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return asks_much(x, mask)


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Asks()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.inner(x, mask)
        return y * 2


CALLED: dict[str, Callable[[foretrace.Program], Any]] = {
    "export": lambda program: program.cut("export"),
    "aten": lambda program: program.cut("aten"),
    "joint": lambda program: program.cut("joint", loss=0),
    "compile": lambda program: program.compile(),
    "compile, graphs": lambda program: program.compile(backend=lambda module, _: module),
    "compile, inductor": lambda program: program.compile(backend="inductor"),
}


@pytest.mark.parametrize("route", CALLED)
def test_a_call_is_told_the_line_and_the_question_and_then_and_now(route: str) -> None:
    called = CALLED[route](foretrace.capture(asks_much, (X, YES)))
    called(X.detach().requires_grad_(), YES)
    with pytest.raises(foretrace.Refusal) as caught:
        called(X.detach().requires_grad_(), NO)
    refusal = caught.value
    assert refusal.kind == "guard broken"
    assert refusal.at is not None
    assert "if mask.all()" in refusal.at.text
    assert "is_nonzero of what follows from mask is False now, and was True" in refusal.what


def test_answers_that_change_at_each_call_end_in_a_refusal() -> None:
    """After as many captures as it says; calls that a capture has are answered before and after."""

    def fn(x: Tensor) -> Tensor:
        return x * len(range(int(x.sum())))

    compiled = foretrace.compile(fn, fullgraph=True)
    ones = torch.ones(4, dtype=torch.int64)
    with warnings.catch_warnings(action="ignore"):
        for number in range(65):
            assert torch.equal(compiled(ones * number), fn(ones * number))
        with pytest.raises(foretrace.Refusal, match="captured again 64 times because") as caught:
            compiled(ones * 65)
    assert caught.value.kind == "changing answers"
    assert caught.value.at is not None
    assert "range(int(x.sum()))" in caught.value.at.text
    assert len(compiled.recaptures) == 64
    assert torch.equal(compiled(ones * 64), fn(ones * 64))


@pytest.mark.parametrize("kind", ["export", "aten", "joint"])
def test_a_module_that_is_kept_whole_asserts_inside(kind: str) -> None:
    program = foretrace.capture(Holds(), (X, YES))
    module = program.cut(kind, loss=0, keep=[lambda op: str(op.target) == "inner"]).graph_module
    assert not any("_assert_async" in node.name for node in module.graph.nodes)
    inputs = X.detach().requires_grad_(kind == "export")
    assert torch.equal(module(inputs, YES)[0], 2 * asks_much(X, YES))
    with pytest.raises(RuntimeError, match=SAYS):
        module(inputs, NO)


def test_an_exported_program_asserts_when_it_is_saved_and_decomposed() -> None:
    with pytest.warns(UserWarning, match=r"asserts each answer(.|\n)*if mask\.all\(\)"):
        exported = foretrace.export(Asks(), (X.detach(), YES))
    exported.validate()
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    with warnings.catch_warnings(action="ignore"):
        forms = exported, torch.export.load(file), exported.run_decompositions()
    for form in forms:
        assert torch.equal(form.module()(X.detach(), YES), asks_much(X.detach(), YES))
        with pytest.raises(RuntimeError, match=SAYS):
            form.module()(X.detach(), NO)
    with pytest.raises(foretrace.Refusal, match="depends on the inputs"):
        foretrace.export(Asks(), (X.detach(), YES), values="refuse")


def test_an_export_without_questions_does_not_warn() -> None:
    foretrace.export(nn.Linear(3, 3), (torch.randn(2, 3),))


def test_aot_export_module_asserts() -> None:
    with pytest.warns(UserWarning, match="asserts each answer"):
        module, _ = foretrace.aot_export_module(Asks(), (X.detach(), YES), trace_joint=False)
    with pytest.raises(RuntimeError, match=SAYS):
        module(X.detach(), NO)


def test_inductor_asserts() -> None:
    x = torch.randn(3)
    module = foretrace.capture(asks_much, (x, YES)).cut("aten").graph_module
    compiled: Any = torch._inductor.compile(module, [x, YES])
    assert torch.allclose(compiled(x, YES)[0], asks_much(x, YES))
    with pytest.raises(RuntimeError, match=SAYS):
        compiled(x, NO)


# ---- what is asked -------------------------------------------------------------------------------


def test_the_same_question_is_one_guard_and_one_assertion() -> None:
    def fn(x: Tensor) -> Tensor:
        y = x * 2 if (x > 0).any() else x
        return y * 3 if (x > 0).any() else y

    program = foretrace.capture(fn, (torch.ones(2),))
    assert len(program.guards) == 1
    assert sum("_assert_async" in name for name in program.cut("aten").nodes) == 1


def test_other_sizes_are_no_question_about_values() -> None:
    def fn(x: Tensor) -> Tensor:
        return x if torch.equal(x, x[:1]) else -x

    program = foretrace.capture(fn, (torch.randn(3, 2),))
    assert not program.guards
    assert torch.equal(program.cut("aten").graph_module(torch.ones(3, 2))[0], -torch.ones(3, 2))


def test_a_wrong_word_is_refused() -> None:
    for wrong in ("guards", True, None, []):
        with pytest.raises(foretrace.Refusal, match="values="):
            foretrace.capture(masked, (X, YES), values=wrong)  # type: ignore[arg-type]


GUARDED = 'let the answer be a guard: values="guard"'


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (lambda x: x if (x > 0).any() else -x, True),
        (lambda x: x[x > 0], True),
        (lambda x: x * (x > 0).sum().item(), True),
        (lambda x: x * x.sum().item(), True),
        (lambda x: x * x.cfloat().sum().item(), False),
        (lambda x: torch.tensor(x.numpy()), False),
    ],
    ids=["yes_or_no", "a_size", "an_integer", "a_float", "a_complex_number", "memory"],
)
def test_a_guard_is_a_way_out_where_it_answers(fn: Any, *, told: bool) -> None:
    with pytest.raises(foretrace.Refusal) as refused:
        foretrace.capture(fn, (torch.ones(2),), values="refuse")
    assert any(GUARDED in way for way in refused.value.do) is told
    if told:
        program = foretrace.capture(fn, (torch.ones(2),), values="guard")
        assert torch.equal(program.cut("aten")(torch.ones(2)), fn(torch.ones(2)))


@pytest.mark.parametrize("device", ["meta"])
def test_examples_without_data_are_refused_by_line(device: str) -> None:
    with pytest.raises(foretrace.Refusal, match=r"if mask\.all\(\)"):
        foretrace.capture(masked, (X.detach().to(device), YES.to(device)))


def test_no_question_no_assertion() -> None:
    program = foretrace.capture(lambda x: x.sin() * 2, (X,))
    assert not program.guards
    assert not any("assert" in name for name in program.cut("aten").nodes)


# ---- random numbers ------------------------------------------------------------------------------


GENERATOR = torch.Generator()


def draws_and_asks(x: Tensor) -> Tensor:
    y = F.dropout(x, 0.5)
    z = y * 2 if (y > 0).sum() > 1 else y * 3
    if torch.rand(3, generator=GENERATOR).sum() > torch.rand(3).sum():
        z = z + 1
    return z.sum() if torch.rand(()) > 0.5 else z.exp().sum()


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    GENERATOR.manual_seed(seed)


def states() -> list[Tensor]:
    return [torch.get_rng_state(), GENERATOR.get_state()]


@pytest.mark.parametrize("seed", range(6))
def test_questions_about_random_numbers_are_answered_as_eager_draws(seed: int) -> None:
    with torch.random.fork_rng():
        seeded(seed)
        expected, after = draws_and_asks(X), states()
        seeded(seed)
        before = states()
        program = foretrace.capture(draws_and_asks, (X,))
        assert all(map(torch.equal, before, states()))
        for kind in ("export", "aten"):
            seeded(seed)
            assert torch.equal(program.cut(kind)(X), expected)
            assert all(map(torch.equal, after, states()))


def test_a_compiled_callable_draws_as_eager_whatever_the_answers() -> None:
    compiled = foretrace.compile(draws_and_asks, fullgraph=True)
    with torch.random.fork_rng():
        for seed in range(24):
            seeded(seed)
            expected, after = draws_and_asks(X), states()
            seeded(seed)
            assert torch.equal(compiled(X), expected)
            assert all(map(torch.equal, after, states()))
    assert 1 < len(compiled.recaptures) < 8


# ---- compiled ------------------------------------------------------------------------------------


def test_what_is_asked_in_the_middle_runs_once() -> None:
    """The part before the question is run by the call, and not once more to guard it."""

    def fn(x: Tensor) -> Tensor:
        y = x.exp().sin().cos()
        return y * 2 if (y < 2).all() else y

    compiled = foretrace.compile(fn, fullgraph=True)
    compiled(X)
    with torch.profiler.profile() as seen:
        found = compiled(X)
    assert torch.equal(found, fn(X))
    assert [event.name for event in seen.events()].count("aten::exp") == 1


def test_threads_capture_each_answer_once() -> None:
    compiled, wrong = foretrace.compile(masked, fullgraph=True), []

    def work(start: int) -> None:
        for turn in range(50):
            mask = (YES, NO)[(turn + start) % 2]
            if not torch.equal(compiled(X, mask), masked(X, mask)):
                wrong.append(turn)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(compiled.recaptures) == 1


@pytest.mark.parametrize("given", [YES, NO], ids=["yes", "no"])
def test_other_backends_ask_before(given: Tensor) -> None:
    compiled = foretrace.compile(masked, backend=lambda graph, inputs: graph, fullgraph=True)
    for mask in (YES, NO, given):
        x = X.detach().requires_grad_()
        compiled(x, mask).backward()
        y = X.detach().requires_grad_()
        masked(y, mask).backward()
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, y.grad)
    assert len(compiled.recaptures) == 1


# ---- transformers --------------------------------------------------------------------------------

MASKED = (
    "llama", "gpt2", "qwen3", "mixtral", "bert", "roberta", "distilbert", "t5", "bart",
    "qwen2", "phi", "gpt_neox", "opt", "electra", "albert", "mpnet", "modernbert",
)  # fmt: skip


@pytest.mark.parametrize("name", some(3, MASKED))
@pytest.mark.filterwarnings("ignore")
def test_a_padded_batch_of_transformers_trains_by_plain_capture(name: str) -> None:
    model, inputs = models.padded(name)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = model(**inputs)
        expected.loss.backward()
        torch.manual_seed(5)
        program = foretrace.capture(model, (), inputs)
        joint = program.cut("joint", loss=0)
        outputs, gradients = joint(**inputs)
    assert torch.equal(outputs["loss"], expected.loss)
    trained = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert trained
    for place, gradient in trained.items():
        found = gradients[place]
        assert found is not None, place
        assert torch.equal(found, gradient), place
    full = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
    said = r"attention_mask is True now, and was False in the capture"
    with pytest.raises(foretrace.Refusal, match=said):
        joint(**full)
    flat, _ = program.calls.inputs((), inputs)
    roles = [role.name for role in joint.signature.inputs]
    flat[roles.index("attention_mask")] = full["attention_mask"]
    with pytest.raises(RuntimeError, match=said + r"; question 1, at .*masking_utils\.py"):
        joint.graph_module(*(each.detach() for each in flat))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in {"llama", "bert"} else pytest.mark.slow) for n in MASKED],
)
@pytest.mark.filterwarnings("ignore")
def test_a_padded_batch_of_transformers_in_a_file(name: str) -> None:
    """transformers asks nothing where it is told of an export: the file is for every mask."""
    model, inputs = models.padded(name)
    twin, file = copy.deepcopy(model), io.BytesIO()
    torch.export.save(foretrace.export(model, (), inputs), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    torchs = torch.export.export(twin, (), inputs).module()
    full = inputs | {"attention_mask": torch.ones_like(inputs["attention_mask"])}
    assert torch.equal(of_loss(loaded, inputs), of_loss(model, inputs))
    for given in (inputs, full):
        assert torch.equal(of_loss(loaded, given), of_loss(torchs, given))


def of_loss(call: Callable[..., Any], inputs: dict[str, Tensor]) -> Tensor:
    torch.manual_seed(5)
    loss: Tensor = call(**inputs)["loss"].detach()
    return loss


def test_a_question_about_what_a_condition_gave_is_answered_by_the_side_that_runs() -> None:
    def f(n: Tensor, x: Tensor) -> Tensor:
        more = torch.cond(n > 2, lambda t: t + 1, lambda t: t - 1, (n,))
        less = torch.cond(n > 2, lambda t: t * 0, lambda t: t / 2, (n,))
        if more > 3.5:
            x = x + 1
        if less > 3.5:
            x = x * 100
        return x

    for first, other in ((3.0, 9.0), (9.0, 3.0), (0.0, 1.0), (3.0, 5.0)):
        args = torch.tensor(first), torch.ones(3)
        aten = foretrace.capture(f, args).cut("aten")
        held = (torch.tensor(other), torch.ones(3))
        for given in (args, held):
            assert torch.equal(aten(*given), f(*given))
    with pytest.raises(foretrace.Refusal, match="is_nonzero of what follows from n"):
        aten(torch.tensor(1.0), torch.ones(3))


def test_a_condition_that_draws_is_asked_in_its_place_among_the_draws() -> None:
    def f(n: Tensor, x: Tensor) -> Tensor:
        first = torch.rand(2)
        noise = torch.cond(n > 2, lambda t: torch.rand_like(t), lambda t: t - 1, (x,))  # noqa: PLW0108
        last = torch.rand(2)
        if first[0] + noise[0] > last[0]:
            return x + noise
        return x - noise

    for seed in range(8):
        args = torch.tensor(3.0), torch.ones(3)
        torch.manual_seed(seed)
        expected = f(*args)
        torch.manual_seed(seed)
        aten = foretrace.capture(f, args).cut("aten")
        torch.manual_seed(seed)
        assert torch.equal(aten(*args), expected)
