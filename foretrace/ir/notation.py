"""A tree of ops as text that can be read back, for tests of passes and for reports of bugs.

    %0 = aten.linear.default(%x, %w, None): f32[4, 3]
        %1 = aten.t.default(%w): f32[8, 3] by [1, 8]
        %0 = aten.mm.default(%x, %1): f32[4, 3]

Values that no op makes are declared first, a line each: `%x: f32[4, 8] grad`. A type has its
strides where they are not in order, its offset after `at`, `grad` where autograd follows it. A
write is marked by `!`. Only operators of torch with sizes in numbers can be read, and what they
return is what they make; lines, reasons and rules are not in the text.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from inspect import isroutine
from itertools import count
from math import inf, nan
from operator import attrgetter
from typing import Any, Final

import sympy
import torch

from foretrace.ir.op import Op, Origin, Tree, Value, target_name
from foretrace.ir.types import DTYPE_NAMES, TensorType
from foretrace.ir.walk import in_bodies, made_in

INDENT: Final = "    "
DTYPES: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}
TYPE: Final = re.compile(
    r"(\w+)\[([\d, ]*)\](?: by \[([\d, ]*)\])?(?: at (\d+))?(?: on ([\w:]+))?( grad)?"
)
LINE: Final = re.compile(r"(?:(?P<outs>%.*?) = )?(?P<target>[\w.]+?)(?P<write>!?)\((?P<args>.*)\)"
                         r"(?:: (?P<types>.*))?")  # fmt: skip
VALUE, NAMED = r"%(\w+)", r"v_\1"
NAMES: Final = {"inf": inf, "nan": nan, "None": None, "True": True, "False": False}


def write(ops: Sequence[Op]) -> str:
    """The ops as text."""
    names = _names(ops)
    made = made_in(ops)
    given = [value for value in names if value not in made]
    lines = [f"%{names[value]}: {_type(value.type)}" for value in given]
    return "\n".join([*lines, *_lines(ops, names, "")]) + "\n"


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
    ops, rest = _read_ops(lines, values, _depth(lines[0]) if lines else 0)
    if rest:
        raise ValueError(f"an unexpected line: {rest[0]}")
    return values, ops


# ---- writing ------------------------------------------------------------------------------------


def _names(ops: Sequence[Op]) -> dict[Value, str]:
    """A name for each value: its own where it has one, else a number."""
    names: dict[Value, str] = {}
    numbers, taken = count(), set[str]()
    for value in dict.fromkeys(v for op in in_bodies(ops) for v in (*op.operands, *op.outs)):
        own = re.sub(r"\W", "_", value.hint or "")
        own = f"{own}_" if own and (own.isdigit() or own in taken) else own
        names[value] = own or str(next(numbers))
        taken.add(own)
    return names


def _lines(ops: Iterable[Op], names: dict[Value, str], indent: str) -> Iterator[str]:
    for op in ops:
        outs = ", ".join(f"%{names[out]}" for out in op.outs)
        types = ", ".join(_type(out.type) for out in op.outs)
        args = [_tree(arg, names) for arg in op.args]
        args += [f"{name}={_tree(arg, names)}" for name, arg in op.kwargs.items()]
        target = target_name(op.target) if isroutine(op.target) else op.target
        call = f"{target}{'!' * op.writes}({', '.join(args)})"
        call = f"{op.result} = {call}" if isinstance(op.result, sympy.Symbol) else call
        yield f"{indent}{outs} = {call}: {types}" if outs else indent + call
        yield from _lines(op.body or (), names, indent + INDENT)
        if op.body is not None and not op.body:
            yield f"{indent}{INDENT}pass"


def _tree(tree: Tree, names: dict[Value, str]) -> str:
    if isinstance(tree, Value):
        return f"%{names[tree]}"
    if isinstance(tree, (list, tuple)):
        return f"[{', '.join(_tree(item, names) for item in tree)}]"
    if isinstance(tree, torch.device):
        return f"device({str(tree)!r})"
    return repr(tree) if isinstance(tree, (str, float)) else str(tree)


def _type(type: TensorType) -> str:
    parts = [repr(type)]
    if type.stride != type.contiguous().stride:
        parts.append(f"by {list(type.stride)}")
    parts += [f"at {type.offset}"] * (type.offset != 0)
    parts += [f"on {type.device}"] * (type.device.type != "cpu")
    return " ".join([*parts, *["grad"] * type.requires_grad])


# ---- reading ------------------------------------------------------------------------------------


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _read_ops(lines: list[str], values: dict[str, Value], depth: int) -> tuple[list[Op], list[str]]:
    """The ops of one level, and the lines after them."""
    ops, rest = list[Op](), lines
    while rest and _depth(rest[0]) == depth:
        line, rest = rest[0].strip(), rest[1:]
        if line == "pass":
            continue
        op = _read_op(line, values)
        if rest and _depth(rest[0]) > depth:
            body, rest = _read_ops(rest, values, _depth(rest[0]))
            op = op.but(below=body)
        ops.append(op)
    return ops, rest


def _read_op(line: str, values: dict[str, Value]) -> Op:
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no op: {line}")
    names = re.findall(r"%(\w+)", found["outs"] or "")
    types = [_read_type(match[0]) for match in TYPE.finditer(found["types"] or "")]
    outs = tuple(
        values.setdefault(name, Value(type)) for name, type in zip(names, types, strict=True)
    )
    call: Any = ast.parse(f"f({re.sub(VALUE, NAMED, found['args'])})", mode="eval").body
    args = tuple(_read_tree(arg, values) for arg in call.args)
    kwargs = {str(word.arg): _read_tree(word.value, values) for word in call.keywords}
    result: Tree = outs[0] if len(outs) == 1 else outs
    target, origin = attrgetter(found["target"])(torch.ops), Origin(None, None)
    writes = bool(found["write"])
    return Op(target, args, kwargs, result, outs, origin=origin, writes=writes)


def _read_tree(node: ast.expr, values: dict[str, Value]) -> Any:
    match node:
        case ast.Name(id=name):
            return values[name.removeprefix("v_")] if name.startswith("v_") else NAMES[name]
        case ast.List(elts=items):
            return [_read_tree(item, values) for item in items]
        case ast.Attribute(value=ast.Name(id="torch"), attr=attr):
            return getattr(torch, attr)
        case ast.Call(func=ast.Name(id="device"), args=[ast.Constant(value=str(name))]):
            return torch.device(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read_tree(operand, values)
        case ast.Constant() | ast.BinOp():  # a complex number is a sum
            return ast.literal_eval(node)
        case _:
            raise ValueError(f"no argument: {ast.unparse(node)}")


def _read_type(text: str) -> TensorType:
    found = TYPE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"no type: {text}")
    name, shape, stride, offset, device, grad = found.groups()
    sizes = tuple(map(int, shape.split(","))) if shape else ()
    plain = TensorType(sizes, (), DTYPES[name], torch.device(device or "cpu")).contiguous()
    strides = tuple(map(int, stride.split(","))) if stride else plain.stride
    return plain.but(stride=strides, offset=int(offset or 0), requires_grad=bool(grad))
