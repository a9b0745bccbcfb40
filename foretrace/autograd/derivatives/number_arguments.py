"""Rules of calls that take open numbers: sizes, and floats that data decides.

Eager has a number for each. A formula may ask what a float is, or make a tensor of a number.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import sympy
import torch

from foretrace.autograd.derivatives.rule import Rule, TypedCall
from foretrace.errors import Refusal
from foretrace.ir.program.op import Subgraph
from foretrace.ir.program.walk import in_bodies
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.sym_float import ASKED_NUMBER
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.inference.numeric_probe import at_floats, with_any_number

SCALAR_TENSOR = torch.ops.aten.scalar_tensor.default

Ask: TypeAlias = Callable[[TypedCall], Rule]


def rule_at_numbers(ask: Ask, call: TypedCall, symbols: Symbols) -> Rule:
    """The rule of a call: as eager has it, which has a number for each symbol."""
    floats = symbols.floats.among(call.arguments)
    found = _at_floats(ask, call, floats, symbols) if floats else ask(call)
    if _makes_tensors(found, _sizes_in(call.arguments, symbols)):
        return ask(call.over(map_tree(call.arguments, partial(_number_fixed, symbols))))
    return found


def _sizes_in(arguments: Tree, symbols: Symbols) -> set[sympy.Symbol]:
    """The symbols of sizes that a call takes as numbers, and not as those of a tensor."""
    numbers = map_tree(arguments, lambda leaf: None if isinstance(leaf, TensorType) else leaf)
    return free_symbols(numbers) - symbols.floats.known.keys()


def _number_fixed(symbols: Symbols, leaf: Any) -> Any:
    """A number of sizes as it was; that they are the same is a guard."""
    if not isinstance(leaf, sympy.Basic) or leaf in symbols.floats.known:
        return leaf
    for symbol in leaf.free_symbols - symbols.floats.known.keys():
        symbols.fixed(symbol)
    return symbols.concrete(leaf)


def _at_floats(ask: Ask, call: TypedCall, floats: list[sympy.Symbol], symbols: Symbols) -> Rule:
    """The rule of a call that takes floats which data decides.

    A formula may ask what a float is: is it 1? Then the rule is asked with numbers. So it is
    where the formula makes a tensor of a float: of numbers it may be another (that of `pow`,
    torch 2.14 on), and eager has numbers. Of sizes such a formula is asked with these fixed.
    """
    try:
        rule = ask(call)
        if not _makes_tensors(rule, floats):
            return rule
    except Refusal as refusal:
        if refusal.kind != ASKED_NUMBER:
            raise
    rules = list[Rule]()

    def record(numbers: Mapping[sympy.Symbol, float]) -> Subgraph:
        rules.append(rule := ask(call.over(at_floats(call.arguments, numbers))))
        params = (rule.operands, rule.results, rule.written, rule.tangents)
        return Subgraph("rule", params, rule.ops, rule.gradients)

    found = with_any_number(record, floats, symbols.floats.known)
    if found is None:
        numbers = {symbol: symbols.fix(symbol) for symbol in floats}
        return ask(call.over(at_floats(call.arguments, numbers)))
    for symbol, number in found[1]:
        symbols.assume_unequal(symbol, number)
    return replace(rules[-1], ops=tuple(found[0]))


def _makes_tensors(rule: Rule, symbols: Iterable[sympy.Symbol]) -> bool:
    """Whether a formula makes a tensor of a number that follows from one of the symbols."""
    makers = [op for op in in_bodies(rule.ops) if op.target is SCALAR_TENSOR]
    return any(free_symbols(op.args[0]) & set(symbols) for op in makers)
