"""Record one run: every operator call becomes an op in the tree, at about 10 us a call.

The program is a value program from the start: an op that writes in place becomes an op with a new
value as its out (see `effects`), so that nothing after the recorder has to know of mutation.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.op import Definition, ModuleCall, Op, Origin, Target, Tree, Value, map_values
from foretrace.ir.op import values_in
from foretrace.ir.types import TensorType
from foretrace.trace.abstract import Abstract, Types
from foretrace.trace.effects import current, link, written
from foretrace.trace.meaning import Given, Meaning, Semantics
from foretrace.trace.sources import Sources

PLAIN = frozenset({
    int, bool, str, type(None), complex, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})  # fmt: skip
"""Arguments that are constants and their own key."""


LIFT_FRESH = torch.ops.aten.lift_fresh.default
LIFT_FRESH_COPY = torch.ops.aten.lift_fresh_copy.default
"""A constant of the program is copied where it is made, as each run makes it anew."""
INDEX = torch.ops.aten.index.Tensor


class Recorder(torch_api.TorchDispatchMode):
    """The mode that records; also the tool by which bodies and views are recorded again."""

    def __init__(
        self,
        types: Types,
        semantics: Semantics,
        sources: Sources,
        lift: Callable[[torch.Tensor], Abstract],
        lift_constant: Callable[[torch.Tensor], Abstract],
        answer: Callable[["Recorder", Any, Tree, dict[str, Tree]], Any],
    ) -> None:
        super().__init__()
        self._mode_key = torch_api.FAKE_MODE_KEY
        self.types, self.semantics, self.sources = types, semantics, sources
        self.lift, self.lift_constant, self.answer = lift, lift_constant, answer
        self.scope: list[Op] = []
        self.log: list[Op] = []
        self.module: ModuleCall | None = None
        self.unseen: set[Value] = set()
        """new contents that were written without autograd's knowledge"""
        self.first_refusal: Refusal | None = None
        self.meanings: dict[tuple[Any, ...], Meaning] = {}
        self._origins: dict[tuple[Any, ...], Origin] = {}
        self._depth = 0
        self._failure: tuple[BaseException | None, list[str]] = (None, [])
        self._frame_inside: Frame | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped by `torch._dynamo.disable`: that imports dynamo and adds 3 us a call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Record one call and answer it with abstract tensors."""
        key: list[Any] = [func, self.grad_mode()]
        tensors: list[Abstract] = []
        if func is LIFT_FRESH and not isinstance(args[0], Abstract):
            args, func = (self.lift_constant(args[0]),), LIFT_FRESH_COPY
            key[0] = func
        values = self._read(args, key, tensors)
        named = {name: self._read_one(kwargs[name], key, tensors, name) for name in kwargs or ()}
        meaning = self._meaning(func, values, named, key, tensors)
        try:
            if meaning.inline is not None:
                return meaning.inline(self, func, values, named, tensors)
            return self._abstract(self.emit(func, values, named, meaning), meaning, tensors)
        except Refusal as refusal:
            raise self._located(refusal, func) from None

    def note_failure(self, error: BaseException | None) -> None:
        """Remember the innermost module call that an exception left."""
        if error is not None and self._failure[0] is not error:
            self._failure = (error, self.module_path())

    def module_path(self, error: BaseException | None = None) -> list[str]:
        """The module calls that are running, or that the error came from."""
        if error is not None and self._failure[0] is error:
            return self._failure[1]
        return [str(call) for call in self.module.stack()] if self.module else []

    def grad_mode(self) -> bool:
        """Whether autograd would follow the next op."""
        return torch.is_grad_enabled()

    # ---- reading a call ---------------------------------------------------------------------

    def _read(self, args: Iterable[Any], key: list[Any], tensors: list[Abstract]) -> Tree:
        return tuple([self._read_one(arg, key, tensors) for arg in args])

    def _read_one(
        self, arg: Any, key: list[Any], tensors: list[Abstract], name: str | None = None
    ) -> Tree:
        """The argument with values for tensors; what its meaning depends on goes to `key`."""
        if name is not None:
            key.append(name)
        kind = type(arg)
        if kind is Abstract:
            value = arg.value or current(arg.alias, self)
            key.append(value.type)
            tensors.append(arg)
            return value
        if kind in PLAIN:
            key.append(kind)
            key.append(arg)
            return arg
        if kind is float:
            key.append(arg.hex())
            return arg
        return self._read_other(arg, key, tensors)

    def _read_other(self, arg: Any, key: list[Any], tensors: list[Abstract]) -> Tree:
        if isinstance(arg, (list, tuple)):
            key.append(len(arg))
            return [self._read_one(item, key, tensors) for item in arg]
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expr = self.types.symbols.scalar(arg)
            key.append(expr)
            return expr
        if isinstance(arg, torch.Tensor):
            return self._read_one(self.lift(arg), key, tensors)
        key.append(arg)
        return arg

    def _key_of(self, tree: Tree, key: list[Any]) -> None:
        """The same key, from a call that is already in values."""
        if isinstance(tree, Value):
            key.append(tree.type)
        elif isinstance(tree, (list, tuple)):
            key.append(len(tree))
            for item in tree:
                self._key_of(item, key)
        else:
            key += [type(tree), tree] if type(tree) in PLAIN else [
                tree.hex() if isinstance(tree, float) else tree
            ]

    # ---- meaning ----------------------------------------------------------------------------

    def _meaning(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], key: list[Any],
        tensors: list[Abstract] | None = None,
    ) -> Meaning:  # fmt: skip
        operands = [t.value for t in tensors] if tensors else values_in((args, kwargs))
        if len(operands) > 1 and len(set(operands)) < len(operands):
            key.append(tuple(map(operands.index, operands)))
        found = self.meanings.get(tuple(key))
        if found is None:
            try:
                found = self._learn(func, args, kwargs, grad_mode=key[1])
            except Refusal as refusal:
                raise self._located(refusal, func) from None
            self.meanings[tuple(key)] = found
        return found

    def _learn(self, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool) -> Meaning:
        kernel, choice = self.semantics.body_kernel(func, args, kwargs)
        if kernel is not None:
            return self._learn_body(func, kernel, args, kwargs, choice)
        schema = self.semantics.schema(func)
        if schema.written_now(args, kwargs):
            return Meaning(None, inline=written)
        if not schema.returns_tensors:
            return Meaning(None, inline=Recorder.answer_constant)
        typed = [map_values(tree, lambda v: v.type) for tree in (args, kwargs)]
        try:
            result = self.semantics.infer(func, *typed)
        except Refusal as refusal:
            if refusal.kind != "data-dependent":
                raise
            return Meaning(None, inline=_Fold(refusal))
        fresh = [t for t in _leaves(result) if isinstance(t, TensorType)]
        if grad_mode and any(v.type.requires_grad for v in values_in((args, kwargs))):
            followed = self.semantics.followed(func, *typed)
            fresh = [t.with_grad(on) for t, on in zip(fresh, followed, strict=True)]
        types = iter(map(self.types.intern, fresh))
        result = _map_leaves(result, lambda t: next(types) if isinstance(t, TensorType) else t)
        return Meaning(result, None, choice, schema.view_positions(args, kwargs, len(fresh)))

    def _learn_body(
        self, func: Any, kernel: Any, args: Tree, kwargs: dict[str, Tree], choice: Any
    ) -> Meaning:
        """Run the body once over stand-ins, so that calls of equal types share it."""
        occurrences = values_in((args, kwargs))
        operands = list(dict.fromkeys(occurrences))
        params = [Value(v.type, v.hint) for v in operands]
        stand_ins = [self.abstract(param) for param in params]
        env = dict(zip(operands, stand_ins, strict=True))
        inline = Meaning(None, choice=choice, inline=_Inline(kernel, choice))
        try:
            ops, result = self._run_body(kernel, *self.concrete((args, kwargs), env))
        except Refusal as refusal:
            if refusal.kind != "data-dependent":
                raise
            return inline
        if any(s.value is not p for s, p in zip(stand_ins, params, strict=True)):
            return inline
        places = [occurrences.index(v) for v in operands]
        return _definition_meaning(params, ops, result, stand_ins, places, choice) or inline

    def concrete(self, tree: Tree, env: dict[Value, Any]) -> Tree:
        """Arguments as torch takes them: `env`'s tensor for a value, a SymInt for an expression."""
        if isinstance(tree, Value):
            return env[tree]
        if isinstance(tree, sympy.Basic):
            return self.types.symbols.symbolic(tree)
        if isinstance(tree, (list, tuple)):
            return type(tree)([self.concrete(item, env) for item in tree])
        if isinstance(tree, dict):
            return {name: self.concrete(item, env) for name, item in tree.items()}
        return tree

    def _run_body(self, kernel: Any, args: Any, kwargs: Any) -> tuple[list[Op], Any]:
        with self.inner_scope() as ops, self.listening():
            result = kernel(*args, **kwargs)
        return ops, result

    def listening(self) -> AbstractContextManager[Any]:
        """The mode is active inside: again, where it was popped to answer a call."""
        return nullcontext() if torch_api.is_active(self) else self

    @contextmanager
    def inner_scope(self, frame: Frame | None = None) -> Iterator[list[Op]]:
        """Ops recorded inside go to the yielded list, and come from the given line."""
        outer, outer_frame, inner = self.scope, self._frame_inside, list[Op]()
        self.scope, self._frame_inside = inner, frame
        self._depth += 1
        try:
            yield inner
        finally:
            self.scope, self._frame_inside = outer, outer_frame
            self._depth -= 1

    # ---- recording --------------------------------------------------------------------------

    def emit(self, func: Target, args: Tree, kwargs: dict[str, Tree], meaning: Meaning) -> Op:
        """Append the op for a call."""
        result = meaning.result
        if type(result) is TensorType:
            value = Value(result)
            outs: tuple[Value, ...] = (value,)
            result = value
        else:
            operands = values_in((args, kwargs))
            made: list[Value] = []
            result = _fill(result, operands, made)
            outs = tuple(made)
        op = Op(
            func, args, kwargs, result, outs,
            origin=self.origin(), definition=meaning.definition, choice=meaning.choice,
        )  # fmt: skip
        self.append(op)
        return op

    def append(self, op: Op) -> None:
        """Add an op to the current scope."""
        self.scope.append(op)
        if self._depth == 0:
            self.log.append(op)

    def call(
        self, func: Target, args: Tree, kwargs: dict[str, Tree] | None = None, grad: bool = False
    ) -> Op:
        """Record a call given in values, as views read again and functional forms are."""
        key: list[Any] = [func, grad]
        self._key_of(args, key)
        for name, arg in (kwargs or {}).items():
            key.append(name)
            self._key_of(arg, key)
        meaning = self._meaning(func, args, kwargs or {}, key)
        return self.emit(func, args, kwargs or {}, meaning)

    def origin(self) -> Origin:
        """The user's line, module and grad mode that are current."""
        grad = self.grad_mode()
        frame = self._frame_inside if self._depth else self.sources.here()
        key = (id(frame), self.module, grad)
        known = self._origins.get(key)
        if known is None:
            known = self._origins[key] = Origin(frame, self.module, grad)
        return known

    def _abstract(self, op: Op, meaning: Meaning, tensors: list[Abstract]) -> Any:
        """What the caller gets: an abstract tensor for each new value."""
        new = [self.abstract(out) for out in op.outs]
        for position, operand in meaning.views:
            link(new[position], tensors[operand], op, position, self.grad_mode())
        if type(meaning.result) is TensorType:
            return new[0]
        fresh = iter(new)
        return _map_leaves(
            meaning.result,
            lambda t: next(fresh) if isinstance(t, TensorType)
            else tensors[t.operand] if isinstance(t, Given) else t,
        )  # fmt: skip

    def again(self, func: Any, args: tuple[Any, ...]) -> Any:
        """Record another call in the place of one that could not be."""
        return self.__torch_dispatch__(func, (), args)

    def abstract(self, value: Value) -> Abstract:
        """A new abstract tensor for the value."""
        return self.types.abstract(value)

    def followed_results(
        self, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[bool, ...]:
        """For each result of a leaf, whether autograd follows it under the current grad mode."""
        if not self.grad_mode():
            return ()
        typed = [map_values(tree, lambda v: v.type) for tree in (args, kwargs)]
        return self.semantics.followed(func, *typed)

    def answer_constant(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], tensors: list[Abstract]
    ) -> Any:
        """A call that returns a number: known only where its operands are constants."""
        return self.answer(self, func, args, kwargs)

    def _located(self, refusal: Refusal, func: Any) -> Refusal:
        """Add the user's line, the module and the ops around; remember it in case it is caught."""
        if self._depth == 0:
            near = [f"  {op!r}" for op in self.log[-1:]] + [f"> {func}"]
            refusal.located(self.sources.here(), self.module_path(), near)
            self.first_refusal = self.first_refusal or refusal
        return refusal


class _Fold:
    """A call whose result's size depends on data: known where its operands are constants."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    def __call__(
        self, recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree],
        tensors: list[Abstract],
    ) -> Any:  # fmt: skip
        if func is INDEX and (places := _places(recorder, args[1])) is not None:
            return recorder.again(func, (tensors[0], places))
        try:
            result = recorder.answer(recorder, func, args, kwargs)
        except Refusal as refusal:
            raise self.refusal if refusal.kind == "data-dependent" else refusal from None
        return _map_leaves(
            result, lambda t: recorder.lift_constant(t) if isinstance(t, torch.Tensor) else t
        )


def _places(recorder: Recorder, indices: list[Value | None]) -> list[Abstract | None] | None:
    """Constant masks among indices as the places where they are true; None if a mask is unknown."""
    places: list[Abstract | None] = []
    for index in indices:
        if index is None or index.type.dtype not in (torch.bool, torch.uint8):
            places.append(index and recorder.abstract(index))
            continue
        try:
            found = recorder.answer(recorder, torch.ops.aten.nonzero.default, (index,), {})
        except Refusal:
            return None
        places += [recorder.lift_constant(place) for place in found.unbind(1)]
    return places


class _Inline:
    """Records a body anew at each call, over the call's own tensors."""

    def __init__(self, kernel: Any, choice: Any) -> None:
        self.kernel, self.choice = kernel, choice

    def __call__(
        self, recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree],
        tensors: list[Abstract],
    ) -> Any:  # fmt: skip
        env = dict(zip(values_in((args, kwargs)), tensors, strict=True))
        origin = recorder.origin()
        with recorder.inner_scope(origin.frame) as ops, recorder.listening():
            result = self.kernel(*recorder.concrete(args, env), **recorder.concrete(kwargs, env))
            handed = [t for t in torch_api.tree_leaves(result) if isinstance(t, Abstract)]
            values = [t.value or current(t.alias, recorder) for t in (*handed, *tensors)]
        made = {out for op in ops for out in op.outs}
        outs = tuple(v for v in dict.fromkeys(values) if v in made)
        named = iter(values)
        tree = _map_leaves(result, lambda t: next(named) if isinstance(t, Abstract) else t)
        recorder.append(
            Op(func, args, kwargs, tree, outs, origin=origin, region=ops, choice=self.choice)
        )
        return result


def _definition_meaning(  # noqa: PLR0913 - all parts of one run
    params: list[Value], ops: list[Op], result: Any, stand_ins: list[Abstract],
    places: list[int], choice: Any,
) -> Meaning | None:  # fmt: skip
    """The meaning of a composite whose body ran over stand-ins; None if calls cannot share it."""
    made = {out for op in ops for out in op.outs}
    handed = [leaf for leaf in _leaves(result) if isinstance(leaf, Abstract)]
    outs = [leaf.value for leaf in handed if leaf.value in made]
    if len(set(outs)) < len(outs):
        return None
    views = tuple(
        (outs.index(leaf.value), places[i])
        for leaf in handed if leaf.value in made and leaf.alias is not None
        for i, stand_in in enumerate(stand_ins) if leaf.alias.root is stand_in.alias
    )  # fmt: skip

    def describe(leaf: Any) -> Any:
        if not isinstance(leaf, Abstract) or leaf.value is None:
            return leaf
        return leaf.value.type if leaf.value in made else Given(places[params.index(leaf.value)])

    body = Definition(tuple(params), tuple(ops), tuple(v for v in outs if v is not None))
    return Meaning(_map_leaves(result, describe), body, choice, views)


def _leaves(tree: Tree) -> list[Any]:
    if isinstance(tree, (tuple, list)):
        return [leaf for item in tree for leaf in _leaves(item)]
    return [tree]


def _map_leaves(tree: Tree, change: Callable[[Any], Any]) -> Tree:
    if isinstance(tree, (tuple, list)):
        return type(tree)([_map_leaves(item, change) for item in tree])
    return change(tree)


def _fill(result: Tree, operands: list[Value], made: list[Value]) -> Tree:
    """The result structure with a new value for each type and the operand for each Given."""
    if isinstance(result, TensorType):
        made.append(Value(result))
        return made[-1]
    if isinstance(result, Given):
        return operands[result.operand]
    if isinstance(result, (tuple, list)):
        return type(result)([_fill(item, operands, made) for item in result])
    return result
