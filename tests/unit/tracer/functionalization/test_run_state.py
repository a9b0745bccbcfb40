"""The parts of a run's state: what their methods leave as it was."""

from contextlib import suppress
from typing import Any

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Checkpoint, Origin
from foretrace.ir.values.value import Value
from foretrace.tracer.functionalization.builder import WithoutExample
from foretrace.tracer.functionalization.run_state import (
    Aliasing,
    AutogradState,
    Failures,
    Scope,
)
from tests.support.trees import tree

VALUES, _ = tree("""\
%x: f32[2]
%y: f32[2]
""")
LINE = Frame("model.py", 3, "forward")


def one_op() -> Op:
    return Op("asked", (), {}, None, (), origin=Origin(None, None))


def test_what_is_recorded_inside_goes_to_its_own_list() -> None:
    scope, outer, inner = Scope(), one_op(), one_op()
    scope.ops.append(outer)
    with scope.inner(LINE) as body:
        scope.ops.append(inner)
        assert (scope.depth, scope.frame, scope.outermost) == (1, LINE, scope.root)
        assert scope.bodies == [body]
    assert body == [inner]
    assert scope.ops is scope.root
    assert scope.ops == [outer]
    assert (scope.depth, scope.frame, scope.bodies) == (0, None, [])


def test_the_body_that_calls_share_is_none_of_the_program_s() -> None:
    scope = Scope()
    with scope.inner(shared=True):
        assert scope.bodies == [None]


def test_an_op_can_go_before_the_bodies_that_are_being_recorded() -> None:
    scope, early = Scope(), one_op()
    with scope.inner(), scope.inner() as innermost:
        with scope.before_bodies():
            assert scope.depth == 0
            scope.ops.append(early)
        assert scope.depth == 2
        assert scope.ops is innermost
    assert scope.root == [early]


def test_a_subgraph_has_lines_and_a_log_of_its_own() -> None:
    scope, before, inside = Scope(), one_op(), one_op()
    scope.log.append(before)
    with suppress(LookupError), scope.inner(LINE), scope.subgraph() as ops:
        assert (scope.depth, scope.frame, scope.in_subgraph) == (0, None, True)
        scope.ops.append(inside)
        scope.log.append(inside)
        assert scope.log == [before, inside]
        raise LookupError
    assert ops == [inside]
    assert scope.log == [before]
    assert not scope.in_subgraph
    assert scope.ops is scope.root


def test_a_checkpoint_ends_where_it_ends() -> None:
    scope, region = Scope(), Checkpoint(None, ())
    with suppress(LookupError), scope.checkpointed(region):
        assert scope.checkpoint is region
        raise LookupError
    assert scope.checkpoint is None


def test_an_origin_has_what_is_on() -> None:
    scope = Scope()
    found = scope.origin(LINE, grad=True, inference=False, recast=())
    assert (found.frame, found.grad_mode, found.checkpoint) == (LINE, True, None)
    assert scope.last_origin is found


def test_overwritten_memory_of_a_body_ends_with_it() -> None:
    aliasing, held = Aliasing(), Value(VALUES["x"].type)
    aliasing.overwritten[held] = None  # type: ignore[assignment]
    with aliasing.of_body():
        aliasing.overwritten[VALUES["y"]] = None  # type: ignore[assignment]
    assert list(aliasing.overwritten) == [held]


def test_what_a_subclass_wraps_inside_is_known_there_alone() -> None:
    aliasing = Aliasing()
    aliasing.in_subclasses.add(VALUES["x"])
    with aliasing.inside_subclass() as wrapped:
        assert not wrapped
        aliasing.in_subclasses.add(VALUES["y"])
    assert wrapped == {VALUES["y"]}
    assert aliasing.in_subclasses == {VALUES["x"]}


def test_the_form_whose_results_are_written_is_known_meanwhile() -> None:
    aliasing, form = Aliasing(), one_op()
    with suppress(LookupError), aliasing.writing_results(form):
        assert aliasing.functional_form is form
        raise LookupError
    assert aliasing.functional_form is None


def test_rebased_views_are_taken_once() -> None:
    aliasing, view = Aliasing(), object()
    aliasing.rebased.append(view)  # type: ignore[arg-type]
    assert aliasing.take_rebased() == [view]
    assert aliasing.take_rebased() == []


def test_inference_mode_was_on_once_it_was() -> None:
    state = AutogradState()
    state.inference.switch(on=True)
    state.inference.switch(on=False)
    assert (state.inference.on, state.inference.seen) == (False, True)
    state.inference.begin(on=False)
    assert not state.inference.seen


def test_hooks_rest_where_their_own_call_is_recorded() -> None:
    state, hooks = AutogradState(), object()
    state.save_by(hooks)
    with state.without_hooks():
        assert state.saving is None
    assert state.saving is hooks


def test_the_first_refusal_counts_and_the_innermost_call() -> None:
    failures, error = Failures(), LookupError()
    first, second = (Refusal(name, kind="unsupported", do="wait") for name in ("one", "two"))
    failures.note(first)
    failures.note(second)
    assert failures.first is first
    failures.note_in(error, ["net", "net.0"])
    failures.note_in(error, ["net"])
    assert failures.path == ["net", "net.0"]


class Two(WithoutExample):
    """Every answer is 2."""

    def answer(self, recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
        return 2


def test_without_an_example_constants_answer() -> None:
    assert Two().example(None, "op", (), {}) == 2
    assert Two().number(None, "op", (), {}) == (2, False)
