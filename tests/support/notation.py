"""A tree of ops as text that can be read back, for tests of passes and for reports of bugs.

    %0 = aten.linear.default(%x, %w, None): f32[4, 3]
        %1 = aten.t.default(%w): f32[8, 3] by [1, 8]
        %0 = aten.mm.default(%x, %1): f32[4, 3]

Values that no op makes are declared first, a line each: `%x: f32[4, 8] grad`. A type has its
strides where they are not in order, its offset after `at`, `grad` where autograd follows it. A
write is marked by `!`. A size or a condition on sizes is an expression, `<u0 + 1>` as an argument;
a number that an op reads of data is what it gives: `u0 = aten.item.default(%x)`. A program that an
op holds is named where it is an argument, and follows with its params, results and ops:

    %2 = higher_order.cond(%0, @true_graph, @false_graph, [%x]): f32[4]
        @true_graph(%a: f32[4]) -> [%3]
            %3 = aten.sin.default(%a): f32[4]

A param without a type is a value of the program around. Only operators of torch can be read, and
what they return is what they make; lines, reasons and rules are not in the text.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from inspect import isroutine
from itertools import count
from math import inf, nan
from operator import attrgetter
from typing import Any, Final

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph, target_name
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.walk import subgraphs_of, with_subgraphs
from foretrace.ir.values.tensor_type import DTYPE_NAMES, TensorType
from foretrace.ir.values.value import Tree, Value, values_in

INDENT: Final = "    "
DTYPES: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}
TYPE: Final = re.compile(
    r"(\w+)\[([^\]]*)\](?: by \[([^\]]*)\])?(?: at (\d+|<[^>]*>))?(?: on ([\w:]+))?( grad)?"
)
LINE: Final = re.compile(
    r"(?:(?P<outs>[%\w, ]*?) = )?(?P<target>[\w.]+?)(?P<write>!?)\((?P<args>.*)\)"
    r"(?:: (?P<types>.*))?"
)
HELD: Final = re.compile(r"@(\w+)\((.*)\) -> (.*)")
STRING: Final = re.compile(r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")""")
EXPRESSION: Final = re.compile(r"<(.+?)>(?=[,\])]|$)")
WORDS: Final = {"%": "v_", "@": "p_"}
"""What values and programs are called while Python reads a line"""
NAMES: Final = {"inf": inf, "nan": nan, "None": None, "True": True, "False": False}


def write(ops: Sequence[Op]) -> str:
    """The ops as text."""
    names, given = _names(ops), _free(ops)
    lines = [f"%{names[value]}: {_type(value.type)}" for value in given]
    return "\n".join([*lines, *_Writing(names, set(given)).lines(ops, "")]) + "\n"


def read(text: str) -> tuple[dict[str, Value], list[Op]]:
    """The values by name, and the ops, of a text in this form.

    Raises:
        ValueError: a line is not in this form.
    """
    values: dict[str, Value] = {}
    lines = [line for line in text.splitlines() if line.strip()]
    while lines and (found := re.fullmatch(rf"%(\w+): ({TYPE.pattern})", lines[0].strip())):
        values[found[1]] = Value(_read_type(found[2]), found[1])
        del lines[0]
    ops, rest = _read_ops(lines, values, _depth(lines[0]) if lines else 0, {})
    if rest:
        raise ValueError(f"an unexpected line: {rest[0]}")
    return values, ops


# ---- writing ------------------------------------------------------------------------------------


def _names(ops: Sequence[Op]) -> dict[Value, str]:
    """A name for each value: its own where it has one, else a number."""
    names: dict[Value, str] = {}
    numbers, taken = count(), set[str]()
    every = [*_every(ops)]
    params = [v for op in every for held in subgraphs_of(op) for v in held.values]
    for value in dict.fromkeys([*(v for op in every for v in (*op.operands, *op.outs)), *params]):
        own = re.sub(r"\W", "_", value.hint or "")
        while own and (own.isdigit() or own in taken):
            own += "_"
        names[value] = own or str(next(numbers))
        taken.add(own)
    return names


def _free(ops: Iterable[Op]) -> dict[Value, None]:
    """What ops read and do not make, in order."""
    found, made = dict[Value, None](), set[Value]()
    for op in ops:
        inside = dict.fromkeys(op.operands) | _free(op.body or ())
        for held in subgraphs_of(op):
            read = _free(held.ops) | dict.fromkeys(values_in(held.result))
            own = {*held.values, *(out for inner in held.ops for out in inner.outs)}
            inside |= {value: None for value in read if value not in own}
        found |= {value: None for value in inside if value not in made}
        made.update(op.outs)
    return found


class _Writing:
    """Ops as lines; `known` are the values that the lines before have."""

    def __init__(self, names: dict[Value, str], known: set[Value]) -> None:
        self.names, self.known = names, known

    def lines(self, ops: Iterable[Op], indent: str) -> Iterator[str]:
        for op in ops:
            outs = ", ".join(f"%{self.names[out]}" for out in op.outs)
            outs = str(op.result) if isinstance(op.result, sympy.Symbol) else outs
            types = ", ".join(_type(out.type) for out in op.outs)
            args = [self.tree(arg) for arg in op.args]
            args += [f"{name}={self.tree(arg)}" for name, arg in op.kwargs.items()]
            call = f"{_target(op)}{'!' * op.writes}({', '.join(args)})"
            line = f"{outs} = {call}" if outs else call
            yield f"{indent}{line}: {types}" if types else indent + line
            for held in subgraphs_of(op):
                yield from self.held(held, indent + INDENT)
            yield from self.lines(op.body or (), indent + INDENT)
            if op.body is not None and not op.body:
                yield f"{indent}{INDENT}pass"
            self.known.update(op.outs)

    def held(self, held: Subgraph, indent: str) -> Iterator[str]:
        """A program that an op holds."""
        params = ", ".join(self.param(param) for param in held.params)
        within = _Writing(self.names, {*self.known, *held.values})
        yield f"{indent}@{held.name}({params}) -> {self.tree(held.result)}"
        yield from within.lines(held.ops, indent + INDENT)

    def param(self, param: Any) -> str:
        """With its type, where it is no value of the program around."""
        new = isinstance(param, Value) and param not in self.known
        return self.tree(param) + (f": {_type(param.type)}" if new else "")

    def tree(self, tree: Tree) -> str:
        """An argument."""
        if isinstance(tree, Value):
            return f"%{self.names[tree]}"
        if isinstance(tree, (list, tuple)):
            return f"[{', '.join(self.tree(item) for item in tree)}]"
        if isinstance(tree, Subgraph):
            return f"@{tree.name}"
        if isinstance(tree, sympy.Basic):
            return f"<{tree}>"
        if isinstance(tree, torch.device):
            return f"device({str(tree)!r})"
        return repr(tree) if isinstance(tree, (str, float)) else str(tree)


def _target(op: Op) -> str:
    higher = isinstance(op.target, torch_api.HigherOrderOperator)
    if higher:
        return f"higher_order.{op.target}"
    return target_name(op.target) if isroutine(op.target) else str(op.target)


def _every(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops, those in bodies and those that are held."""
    for op in ops:
        yield op
        for held in subgraphs_of(op):
            yield from _every(held.ops)
        yield from _every(op.body or ())


def _type(type: TensorType) -> str:
    parts = [repr(type)]
    if type.stride != type.contiguous().stride:
        parts.append(f"by {list(type.stride)}")
    offset = type.offset if isinstance(type.offset, int) else f"<{type.offset}>"
    parts += [f"at {offset}"] * (offset != 0)
    parts += [f"on {type.device}"] * (type.device.type != "cpu")
    return " ".join([*parts, *["grad"] * type.requires_grad])


# ---- reading ------------------------------------------------------------------------------------


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read_ops(
    lines: list[str], values: dict[str, Value], depth: int, own: dict[str, Value]
) -> tuple[list[Op], list[str]]:
    """The ops of one level, and the lines after them; `own`: params of programs, by name."""
    ops, rest = list[Op](), lines
    while rest and _depth(rest[0]) == depth:
        line, rest = rest[0].strip(), rest[1:]
        if line == "pass":
            continue
        op = _read_op(line, values, own)
        while rest and _depth(rest[0]) > depth and rest[0].lstrip().startswith("@"):
            held, rest = _read_held(rest, values, own)
            op = with_subgraphs(op, partial(_with_name, held))
        if rest and _depth(rest[0]) > depth:
            body, rest = _read_ops(rest, values, _depth(rest[0]), own)
            op = op.but(below=body)
        ops.append(op)
    return ops, rest


def _read_op(line: str, values: dict[str, Value], own: dict[str, Value]) -> Op:
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no op: {line}")
    given = found["outs"] or ""
    names = re.findall(r"%(\w+)", given)
    types = [_read_type(match[0]) for match in TYPE.finditer(found["types"] or "")]
    outs = tuple(
        values.setdefault(name, own.setdefault(f"%{name}", Value(type)))
        for name, type in zip(names, types, strict=True)
    )
    call: Any = _parsed(f"f({found['args']})")
    args = tuple(_read_tree(arg, values) for arg in call.args)
    kwargs = {str(word.arg): _read_tree(word.value, values) for word in call.keywords}
    result: Tree = outs[0] if len(outs) == 1 else outs
    if given and not names:
        result = _expression(given)
    target, origin = attrgetter(found["target"])(torch.ops), Origin(None, None)
    writes = bool(found["write"])
    return Op(target, args, kwargs, result, outs, origin=origin, writes=writes)


def _with_name(held: Subgraph, old: Subgraph) -> Subgraph:
    """The program, where the argument has its name."""
    return held if old.name == held.name else old


def _read_held(
    lines: list[str], values: dict[str, Value], own: dict[str, Value]
) -> tuple[Subgraph, list[str]]:
    """A program that an op holds, and the lines after it; `own`: params of others."""
    found, depth = HELD.fullmatch(lines[0].strip()), _depth(lines[0])
    if found is None:
        raise ValueError(f"no program: {lines[0]}")
    name, given, result = found.groups()
    within, params = dict(values), list[Any]()
    for param in re.findall(rf"(%\w+|<[^>]*>)(?:: ({TYPE.pattern}))?", given):
        if param[1]:
            hint = "" if param[0][1:].isdigit() else param[0][1:]
            new = own.setdefault(param[0], Value(_read_type(param[1]), hint))
            within[param[0][1:]] = new
        params.append(_read_tree(_parsed(param[0]), within))
    ops, rest = list[Op](), lines[1:]
    if rest and _depth(rest[0]) > depth:
        ops, rest = _read_ops(rest, within, _depth(rest[0]), own)
    made = _read_tree(_parsed(result), within)
    tree = tuple(made) if isinstance(made, list) else made
    return Subgraph(name, tuple(params), tuple(ops), tree), rest


def _parsed(text: str) -> ast.expr:
    """Python's reading of an argument: marks of values, programs and expressions are names."""
    parts = STRING.split(text)
    parts[::2] = [EXPRESSION.sub(r"e_('\1')", part) for part in parts[::2]]
    parts = STRING.split("".join(parts))
    parts[::2] = [re.sub(r"([%@])(\w+)", lambda m: WORDS[m[1]] + m[2], part) for part in parts[::2]]
    return ast.parse("".join(parts), mode="eval").body


def _expression(text: str) -> Any:
    """A size, or a condition on sizes; one that the example decides is positive."""
    names = set(re.findall(r"[A-Za-z_]\w*", text))
    symbols = {
        name: sympy.Symbol(name, integer=True, positive=True if name[0] == "s" else None)
        for name in names if not hasattr(sympy, name)
    }  # fmt: skip
    return sympy.sympify(text, locals=symbols)


def _read_tree(node: ast.expr, values: dict[str, Value]) -> Any:
    match node:
        case ast.Name(id=name):
            return _named(name, values)
        case ast.List(elts=items):
            return [_read_tree(item, values) for item in items]
        case ast.Attribute(value=ast.Name(id="torch"), attr=attr):
            return getattr(torch, attr)
        case ast.Attribute():
            return attrgetter(ast.unparse(node))(torch.ops)
        case ast.Call(func=ast.Name(id="e_"), args=[ast.Constant(value=str(text))]):
            return _expression(text)
        case ast.Call(func=ast.Name(id="device"), args=[ast.Constant(value=str(name))]):
            return torch.device(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read_tree(operand, values)
        case ast.Constant() | ast.BinOp() | ast.Dict():  # a complex number is a sum
            return ast.literal_eval(node)
        case _:
            raise ValueError(f"no argument: {ast.unparse(node)}")


def _named(name: str, values: dict[str, Value]) -> Any:
    """What a name is: a program has its ops from the lines below."""
    if name.startswith("p_"):
        return Subgraph(name.removeprefix("p_"), (), (), ())
    return values[name.removeprefix("v_")] if name.startswith("v_") else NAMES[name]


def _read_type(text: str) -> TensorType:
    found = TYPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no type: {text}")
    name, shape, stride, offset, device, grad = found.groups()
    sizes = _sizes(shape)
    plain = TensorType(sizes, (), DTYPES[name], torch.device(device or "cpu")).contiguous()
    strides = _sizes(stride) if stride else plain.stride
    return plain.but(
        stride=strides, offset=_sizes((offset or "0").strip("<>"))[0], requires_grad=bool(grad)
    )


def _sizes(text: str) -> tuple[Any, ...]:
    """Sizes, or strides: numbers as Python has them."""
    found = _expression(f"({text},)") if text else ()
    return tuple(int(size) if size.is_Integer else size for size in found)
