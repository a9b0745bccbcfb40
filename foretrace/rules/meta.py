"""Types from torch's kernels for meta tensors, where these are all that FakeTensor would ask.

It asks the same kernels with much around them: ten microseconds here, hundreds there.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.op import Tree
from foretrace.ir.tree import map_tree
from foretrace.ir.types import TensorType
from foretrace.rules.kernel import RAISED
from foretrace.rules.schemas import schema_of
from foretrace.trace.abstract import Types


@cache
def answers(func: Any) -> bool:
    """Whether the operator's results are where its operands are, new, and of known types."""
    schema = schema_of(func)
    labelled = "device" in schema.arguments
    return not labelled and not schema.writes and torch_api.plain_meta_kernel(func)


def as_eager(func: Any, args: Tree, result: Tree) -> Tree:
    """The types that eager gives, where torch's meta kernel says otherwise.

    One example without a batch gives one number, whatever the reduction. Batch norm lays out what
    it makes of its input in order, or with the channels last, and rrelu in order, and neither as
    the input lies.
    Sources: multilabel_margin_loss_forward_out_cpu_template in
    aten/src/ATen/native/LossMultiLabelMargin.cpp, batch_norm_cpu and batch_norm_backward_cpu in
    aten/src/ATen/native/Normalization.cpp, rrelu_with_noise_cpu in
    aten/src/ATen/native/Activation.cpp, torch 2.13.
    """
    if func is torch.ops.aten.rrelu_with_noise.default:
        return result.contiguous()
    if func is torch.ops.aten.multilabel_margin_loss_forward.default and len(args[0].shape) <= 1:
        loss, rest = result
        return TensorType((), (), loss.dtype, loss.device), rest
    if "batch_norm" in func.name() and args[0].device.type == "cpu":
        given = args[schema_of(func).arguments.index("input")]
        made, *rest = result if isinstance(result, tuple) else (None,)
        if isinstance(made, TensorType) and made.shape == given.shape and not given.symbols:
            strides = torch_api.suggested_strides(given.shape, given.stride)
            return made.but(stride=strides), *rest
    return result


INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten._unsafe_index.Tensor)


def as_iterated(func: Any, args: Any, result: Any) -> Any:
    """What a kernel returns in the layout of eager, where torch's meta kernel misses an operand.

    Indexing lays out its result by the strides of what is indexed and by those of the indices.
    The gradient of rrelu in training is `noise * gradient`, to the meta kernel `gradient * noise`.
    Sources: AdvancedIndex in aten/src/ATen/native/TensorAdvancedIndexing.cpp,
    rrelu_with_noise_backward in aten/src/ATen/native/Activation.cpp, torch 2.13.
    """
    if func is torch.ops.aten.rrelu_with_noise_backward.default and args[5]:
        return result.as_strided(result.shape, torch_api.iterated_strides(args[2], args[0]))
    if func not in INDEXING or any(i is not None and i.dtype == torch.bool for i in args[1]):
        return result
    given, places = args[0], [n for n, index in enumerate(args[1]) if index is not None]
    indices, first = torch.broadcast_tensors(*(args[1][n] for n in places)), places[0]
    if places[-1] - first >= len(places):  # not side by side: their dimensions are put in front
        given, first = given.movedim(places, [*range(len(places))]), 0
    before, after = given.stride()[:first], given.stride()[first + len(places) :]
    sizes = (*indices[0].shape, *[1] * len(after))
    strides = (*before, *[0] * indices[0].dim(), *after)
    spread = [index.reshape(sizes).expand(result.shape) for index in indices]
    laid_out = torch_api.iterated_strides(given.as_strided(result.shape, strides), *spread)
    return result.as_strided(result.shape, laid_out)


class MetaKernels:
    """Answers calls of torch's own operators whose tensors are on one device, sizes numbers."""

    def __init__(self, types: Types, meta: Callable[[TensorType], torch.Tensor]) -> None:
        self.types, self.meta = types, meta

    def ask(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree | None:
        """Types of the results; None where FakeTensor is to be asked."""
        if not answers(func):
            return None
        operands: list[TensorType] = []
        metas: list[torch.Tensor] = []
        with torch_api.no_dispatch_modes():
            real_args, real_kwargs = self._real((args, kwargs), operands, metas)
            devices = {type.device for type in operands}
            if len(devices) != 1 or any(type.lazy for type in operands):
                return None  # what is put off is done before some kernels, and not before others
            try:
                result = as_iterated(func, real_args, func(*real_args, **real_kwargs))
            except RAISED:
                return None  # FakeTensor says it in eager's words
        return self._described(result, devices.pop(), metas)

    def _real(self, tree: Tree, operands: list[TensorType], metas: list[torch.Tensor]) -> Any:
        def of(leaf: Any) -> Any:
            if not isinstance(leaf, TensorType):
                return leaf
            operands.append(leaf)
            metas.append(self.meta(leaf))
            return metas[-1]

        return map_tree(tree, of)

    def _described(
        self, result: Any, device: torch.device, metas: list[torch.Tensor]
    ) -> Tree | None:
        if isinstance(result, torch.Tensor):
            handed_back = any(result is meta for meta in metas)
            return None if handed_back else self.types.of(result, device).with_grad(False)
        if isinstance(result, (tuple, list)):
            found = [self._described(item, device, metas) for item in result]
            return None if None in found else type(result)(found)
        return None
