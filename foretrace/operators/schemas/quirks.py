"""One table of what operators do otherwise than their schema, meta kernel or name says.

Each entry has the operators by name, the value that its reader needs of each, and the place in
torch's source. `tools/quirks.py` prints them as docs/torch-quirks.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

NATIVE = "aten/src/ATen/native/"


@dataclass(frozen=True, slots=True, eq=False)
class Quirk:
    """One difference, and the operators that have it."""

    differs: str
    """what eager does, and what torch says or suggests"""
    operators: Mapping[str, Any]
    """by an operator's name, what the reader needs: arguments, a name, positions; or None"""
    source: str
    asked: str
    """the file that reads it"""
    since: str = "2.13, 2.14, 2.15"
    """the versions of torch on which it was observed"""

    def __contains__(self, func: Any) -> bool:
        return func.name() in self.operators

    def __getitem__(self, func: Any) -> Any:
        return self.operators[func.name()]

    @property
    def overloads(self) -> dict[Any, Any]:
        """The same by torch's operator objects; an older torch may lack some."""
        found = ((overload(name), value) for name, value in self.operators.items())
        return {func: value for func, value in found if func is not None}

    def get(self, func: Any, otherwise: Any = None) -> Any:
        """The value of an operator, or `otherwise`."""
        return self.operators.get(func.name(), otherwise)


def overload(name: str) -> Any:
    """The operator of a name such as `aten::index.Tensor`; None if this torch has none."""
    packet, _, kind = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), kind or "default", None)


def _each(value: Any, names: str) -> dict[str, Any]:
    return {f"aten::{name}": value for name in names.split()}


def _none(names: str) -> dict[str, Any]:
    return _each(None, names)


# ---- schemas ------------------------------------------------------------------------------------

HIDDEN_WRITES = Quirk(
    "writes to these arguments where `training` is set; the schema says nothing",
    _each(("running_mean", "running_var"), "native_batch_norm cudnn_batch_norm miopen_batch_norm"),
    NATIVE + "Normalization.cpp",
    "operators/schemas/schema.py",
)
HIDDEN_VIEWS = Quirk(
    "gives a result in the memory of these operands; neither schema nor autograd says so",
    _each(("self",), "_unsafe_view unsafe_split.Tensor unsafe_split_with_sizes lift"),
    NATIVE + "TensorShape.cpp",
    "operators/schemas/schema.py",
)
KEPT_OPERANDS = Quirk(
    "gives a sparse tensor that keeps these operands as what it stores; its schema does not say so",
    {
        **_each(("values", "indices"), "_sparse_coo_tensor_with_dims_and_tensors"),
        **_each(
            ("values", "compressed_indices", "plain_indices"),
            "sparse_compressed_tensor.comp_plain_value_size",
        ),
    },
    NATIVE + "sparse/SparseTensor.cpp and SparseCsrTensor.cpp",
    "operators/schemas/schema.py",
    since="2.13",
)
NO_VIEWS = Quirk(
    "is a view to the schema and none to autograd: it shares the version counter, and no history",
    _none("detach view.dtype"),
    "tools/autograd/derivatives.yaml: no differentiable output",
    "operators/schemas/schema.py",
)
FUNCTIONAL_NAMES = Quirk(
    "has a functional variant whose name does not follow from its own. One may write to the other"
    " operands: the derivative of `rrelu_with_noise_functional` reads the noise that was passed,"
    " not what it drew",
    {
        "aten::native_batch_norm": "_native_batch_norm_legit_functional",
        "aten::cudnn_batch_norm": "_batch_norm_with_update_functional",
        "aten::miopen_batch_norm": "_batch_norm_with_update_functional",
        "aten::normal_": "normal_functional",
        "aten::bernoulli_.float": "bernoulli.p",
        "aten::rrelu_with_noise_": "rrelu_with_noise",
    },
    NATIVE + "native_functions.yaml",
    "operators/schemas/schema.py",
)
FUNCTIONAL_ORDER = Quirk(
    "has a functional variant that takes fewer arguments, in these positions: it chooses the"
    " library by itself, as the composite did",
    _each((0, 1, 2, 3, 4, 6, 7), "cudnn_batch_norm miopen_batch_norm"),
    NATIVE + "Normalization.cpp: _select_batch_norm_backend",
    "operators/schemas/schema.py",
)
SHAPELESS = Quirk(
    "fills an `out` of any shape that has as many elements; torch's own Python kernels resize it",
    _none("arange range linspace logspace"),
    NATIVE + "RangeFactories.cpp",
    "operators/schemas/schema.py",
)

MIXED = Quirk(
    "keeps mean and deviation of 16-bit numbers as float32 on the CPU, where a weight, a bias or a"
    " running statistic is float32; torch's decomposition says the input's dtype",
    _none(
        "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit"
        " _native_batch_norm_legit_functional"
    ),
    NATIVE + "mixed_data_type.h, layer_norm.cpp, group_norm.cpp, Normalization.cpp",
    "operators/inference/eager_strides.py",
)

# ---- layouts: what meta kernels say otherwise than the CPU's kernels ----------------------------

IN_ORDER = Quirk(
    "gives contiguous results on the CPU; its meta kernel keeps the operand's layout",
    _none(
        "rrelu_with_noise pow.Scalar log_sigmoid_forward normal.Tensor_Tensor normal.Tensor_float"
        " normal.float_Tensor _log_softmax_backward_data native_layer_norm_backward poisson"
        " _standard_gamma isin.Tensor_Tensor isin.Tensor_Scalar"
    ),
    NATIVE + "Activation.cpp, Distributions.cpp, TensorCompare.cpp, layer_norm.cpp",
    "operators/inference/eager_strides.py",
)
LOSSES = Quirk(
    "gives contiguous results on the CPU, where nothing is broadcast",
    _none("mse_loss_backward huber_loss_backward smooth_l1_loss_backward"),
    NATIVE + "BinaryOps.cpp, Loss.cpp",
    "operators/inference/eager_strides.py",
)
SUGGESTED = Quirk(
    "has its channels last on the CPU if the operand at this position has; its meta kernel gives"
    " results in order",
    _each(
        0,
        "channel_shuffle max_unpool2d reflection_pad2d reflection_pad3d replication_pad2d"
        " replication_pad3d",
    )
    | _each(
        1,
        "reflection_pad2d_backward reflection_pad3d_backward replication_pad2d_backward"
        " replication_pad3d_backward",
    ),
    NATIVE + "ReflectionPad.cpp, MaxUnpooling.cpp",
    "operators/inference/eager_strides.py",
)
JOINED = Quirk(
    "is a `cat` of two parts on the CPU, and lies as that does; its meta kernel gives it in order",
    _none("roll"),
    NATIVE + "TensorTransformations.cpp: roll",
    "operators/inference/eager_strides.py",
)
ITERATED = Quirk(
    "lays results out as TensorIterator does, which sees the operands at these positions in this"
    " order; its meta kernel misses one",
    _each(
        (0, 1),
        "copysign.Tensor div.Tensor_mode floor_divide heaviside ldexp.Tensor logaddexp logaddexp2"
        " logical_and logical_or logical_xor special_xlog1py xlogy.Tensor hardsigmoid_backward"
        " hardswish_backward hardtanh_backward logit_backward native_dropout_backward"
        " softplus_backward",
    )
    | _each((0, 1, 2), "clamp.Tensor")
    | _each((0, 5), "elu_backward")
    | _each((0,), "index_fill.int_Scalar index_fill.int_Tensor")
    | _each((1, 0), "leaky_relu_backward threshold_backward")
    | _each((2, 0), "rrelu_with_noise_backward"),
    "aten/src/ATen/TensorIterator.cpp",
    "operators/inference/eager_strides.py",
)
WHERE_IT_TRAINS = Quirk(
    "lays results out as TensorIterator does only where this argument is set; else as the operator"
    " that it calls then, which sees these operands",
    {"aten::rrelu_with_noise_backward": (5, (1, 0))},
    NATIVE + "Activation.cpp: rrelu_with_noise_backward calls leaky_relu_backward",
    "operators/inference/eager_strides.py",
)
COMPUTED_OPERAND = Quirk(
    "computes with a contiguous tensor that it makes of this operand",
    {"aten::ldexp.Tensor": 1},
    NATIVE + "BinaryOps.cpp: ldexp multiplies by `2 ** other`",
    "operators/inference/eager_strides.py",
)
INDEXING = Quirk(
    "lies by the strides of what is indexed and by those of the indices",
    _none("index.Tensor _unsafe_index.Tensor"),
    NATIVE + "TensorAdvancedIndexing.cpp: AdvancedIndex",
    "operators/inference/eager_strides.py",
)
ONE_EXAMPLE = Quirk(
    "gives one number for one example without a batch, whatever the reduction is",
    _none("multilabel_margin_loss_forward"),
    NATIVE + "LossMultiLabelMargin.cpp",
    "operators/inference/eager_strides.py",
)
NONE_ASKED_FOR = Quirk(
    "gives None for its second result where the argument at this position is False; its meta kernel"
    " gives an empty tensor",
    _each(10, "_native_multi_head_attention"),
    NATIVE + "transformers/attention.cpp",
    "operators/inference/eager_strides.py",
)
COMPLEX_IN_ORDER = Quirk(
    "gives contiguous results of complex numbers on the CPU",
    _none("angle"),
    NATIVE + "UnaryOps.cpp",
    "operators/inference/eager_strides.py",
)

# ---- kernels that do otherwise than a call of them shows ----------------------------------------

CASTS_BELOW = Quirk(
    "has a kernel that calls operators that autocast casts to lower precision",
    _none("_trilinear convolution linalg_matrix_exp linalg_polar"),
    "aten/src/ATen/autocast_mode.h; seen by the profiler over OpInfo",
    "tracer/recorder/dispatch.py",
)
UNTRACED = Quirk(
    "takes another way while any mode is active than in eager (`isTensorSubclassLike` says yes of"
    " every tensor), takes numbers only, or writes to the memory of a tensor that it makes",
    _none(
        "matmul linalg_eigvals linalg_eigvalsh linalg_svdvals"
        " tensor_split.tensor_indices_or_sections ctc_loss.IntList ctc_loss.Tensor one_hot"
        " lstm.input unsafe_chunk"
        " upsample_linear1d.vec upsample_bilinear2d.vec upsample_trilinear3d.vec"
        " upsample_bicubic2d.vec _upsample_bilinear2d_aa.vec _upsample_bicubic2d_aa.vec"
        " upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec"
        " _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec"
        " _upsample_nearest_exact3d.vec _pad_packed_sequence pad_sequence"
    ),
    "aten/src/ATen/TensorSubclassLikeUtils.h; " + NATIVE + "LinearAlgebra.cpp,"
    " BatchLinearAlgebra.cpp, Onehot.cpp, UpSample.h, LossCTC.cpp, RNN.cpp",
    "operators/targets/mode_sensitive_bodies.py",
)

READS_NUMBERS = Quirk(
    "reads the numbers in this operand's memory, to decide what it calls",
    _each("batch_sizes", "lstm.data gru.data rnn_tanh.data rnn_relu.data _pad_packed_sequence"),
    NATIVE + "RNN.cpp: PackedLayer; PackedSequence.cpp",
    "tracer/recorder/op_handlers.py",
)

DRAWS_IN_ANY_ORDER = Quirk(
    "draws in the order of memory, but on a processor of Intel's in that of the elements; its"
    " functional form gives a contiguous result, unlike all others that draw",
    _none("bernoulli_.float"),
    NATIVE + "cpu/DistributionKernels.cpp: bernoulli_scalar_kernel, as read in a torch before 2.5",
    "tracer/functionalization/written_layout.py",
)

SIZED_BY_NUMBERS = Quirk(
    "is said to give a size that data decides; a list of Python numbers in its call does",
    _none("_ctc_loss"),
    NATIVE + "native_functions.yaml, LossCTC.cpp",
    "operators/inference/infer.py",
)

# ---- derivatives --------------------------------------------------------------------------------

FIRST_GRADIENT_LIKE_OPERAND = Quirk(
    "gives the gradient of its first operand in that one's layout, but in order for a tensor of a"
    " class of its own",
    _none("linalg_householder_product ormqr"),
    "torch/csrc/autograd/FunctionsManual.cpp: householder_product_backward",
    "autograd/derivatives/autograd_run.py",
)
BY_DATA = Quirk(
    "has a derivative that looks at data (a zero, a NaN); a graph computes both answers",
    _none("prod prod.dim_int max min median nanmedian"),
    "torch/csrc/autograd/FunctionsManual.cpp: prod_backward, evenly_distribute_backward",
    "autograd/derivatives/registered_rules.py",
)
WRONG_NOISE = Quirk(
    "has a derivative that reads the noise that was passed, and not what it drew",
    _none("rrelu_with_noise_functional"),
    "tools/autograd/derivatives.yaml",
    "autograd/eager_history/emit_history.py",
)
SCATTERED = Quirk(
    "has a wrong derivative for some dtypes and layouts of the base, or none (complex numbers); a"
    " copy into this view has the right one",
    {
        "aten::slice_scatter": "slice.Tensor",
        "aten::select_scatter": "select.int",
        "aten::diagonal_scatter": "diagonal",
        "aten::as_strided_scatter": "as_strided",
    },
    "tools/autograd/derivatives.yaml",
    "autograd/eager_history/trained_writes.py",
)

OF_SCHEMAS = (
    *(HIDDEN_WRITES, HIDDEN_VIEWS, KEPT_OPERANDS, NO_VIEWS),
    *(FUNCTIONAL_NAMES, FUNCTIONAL_ORDER, SHAPELESS),
)
OF_META_KERNELS = (
    *(MIXED, IN_ORDER, LOSSES, SUGGESTED, JOINED, ITERATED, WHERE_IT_TRAINS),
    *(COMPUTED_OPERAND, INDEXING, ONE_EXAMPLE, NONE_ASKED_FOR, COMPLEX_IN_ORDER),
)
OF_KERNELS = (CASTS_BELOW, UNTRACED, READS_NUMBERS, DRAWS_IN_ANY_ORDER, SIZED_BY_NUMBERS)
QUIRKS: tuple[tuple[str, tuple[Quirk, ...]], ...] = (
    ("What schemas leave out", OF_SCHEMAS),
    ("What meta kernels say of layouts and dtypes", OF_META_KERNELS),
    ("What a call does not show", OF_KERNELS),
    ("Derivatives", (FIRST_GRADIENT_LIKE_OPERAND, BY_DATA, WRONG_NOISE, SCATTERED)),
)
"""All of them, under the headings of the page."""
