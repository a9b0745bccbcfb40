"""Questions of a program about tensors, other than their values, and the session's answers."""

from types import FrameType
from typing import Any, Final, NoReturn

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR, Refusal
from foretrace.ir.symbols.substitution import Size
from foretrace.ir.symbols.symbols import Symbols

READS_VALUES: Final = (
    "reads values that do not exist before the program runs",
    "data-dependent",
    "compute with the tensor instead, or do this outside the captured program",
)
"""What is said of a read of values: why, the kind, what to do"""


def view_unknown(*_: object) -> Refusal:
    """The refusal of a question about views or versions, whose answer a later call may change."""
    return Refusal(
        "the program asks whether a tensor is a view, or of what, or for its `_version`",
        kind="autograd inside",
        do=(
            "ask it of memory that the program has made itself",
            "or let it not depend on that, or ask outside of the captured program",
        ),
    )


def lacks(tensor: Any, name: str) -> NoReturn:
    """Note that an input has no attribute of a name; a later call's may have it.

    Raises:
        AttributeError: always.
    """
    if not name.startswith("ft_") and tensor.ft_gradient is not None:
        gradients, index = tensor.ft_gradient
        gradients.absent[index, name] = None
    raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{name}'")


def in_inference(tensor: Any) -> bool:
    """Whether a tensor is one of inference mode, as `Tensor.is_inference`."""
    return bool(tensor.ft_queries.answers.is_inference(tensor))


class TensorAnswers:
    """Answers about the tensors of a run; these are the answers where no program is recorded."""

    asks_inference: bool = False
    """whether the program asks whether a tensor is one of inference mode"""
    hooking: Any = None
    """records hooks; None where no program is recorded"""
    refuses_text: bool = False
    """whether the text of a tensor is refused, as the program runs as Python then"""

    def set_requires_grad(self, tensor: Any, wanted: bool) -> bool:
        """Set `requires_grad` of a leaf; False where no call can."""
        return False

    def set_data(self, tensor: Any, other: Any) -> bool:
        """Set the memory of a tensor to another's; False where no call can."""
        return False

    def is_inference(self, tensor: Any) -> bool:
        """Whether it is an inference tensor."""
        return False

    def version(self, tensor: Any) -> int:
        """The number of writes to memory that the program has allocated."""
        raise view_unknown()

    def storage_size(self, tensor: Any, needed: Size, number: int) -> Size:
        """The number of elements in the owner's memory, of which `needed` are needed.

        A later call's input may have more. `number` is `needed` in the captured run.
        """
        return needed


class TensorQueries:
    """The questions of a program about the tensors of a run."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self.requires_grad: list[bool] = []
        """the answers to `requires_grad`"""
        self.strides = False
        """whether it asked for strides or contiguity"""
        self.answers = TensorAnswers()

    def answer_by(self, answers: TensorAnswers) -> None:
        """Let a session answer, which starts after the tensors' types exist."""
        self.answers = answers

    def note_all_strides(self) -> None:
        """Note that the program may ask for the strides of tensors that nobody sees it ask for."""
        self.strides = True

    def note_strides(self, asking: FrameType) -> None:
        """Note a question for strides, unless an op, foretrace, or a search for sizes asks."""
        code = asking.f_code
        ours = code.co_filename.startswith(PACKAGE_DIR) or code is torch_api.LOOKS_FOR_SIZES
        self.strides |= not ours and not self._symbols.inside
