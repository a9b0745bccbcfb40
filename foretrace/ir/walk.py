"""Ways through a tree of ops."""

from collections.abc import Iterable, Iterator

from foretrace.ir.op import ModuleCall, Op, Value


def every_op(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and those in their own bodies, each before what it is made of."""
    for op in ops:
        yield op
        yield from every_op(op.region or ())


def leaf_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The leaves that the ops are made of, in the words of each call."""
    for op in ops:
        if op.leaf:
            yield op
        else:
            yield from leaf_ops(op.body or ())


def called_in(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops as written, those in module calls among them."""
    for op in ops:
        yield from called_in(op.region or ()) if isinstance(op.target, ModuleCall) else (op,)


def made_in(ops: Iterable[Op]) -> set[Value]:
    """Everything that ops make, in their bodies too."""
    found: set[Value] = set()
    for op in ops:
        found.update(op.outs)
        found |= made_in(op.body or ())
    return found
