"""What there is to run, by name alone: nothing of torch, foretrace or a model is imported here."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

DTYPES: Final = ("float32", "bfloat16", "autocast")
EXAMPLES: Final = (
    *(f"attention:{name}" for name in ("program", "four_d", "causal", "masked", "dropped")),
    *(f"rms_norm:{name}" for name in ("program", "total", "without_weight", "with_weight_bf16")),
    *("lstm:program", "lstm:with_state", "resnet:program", "unet:program"),
    *("gpt2:program", "bert:program", "vit:program", "llama:program"),
    *("routing:program", "graphs:program", "spline:program", "speech:program"),
)
MODELS: Final = (
    *("llama", "qwen3", "mixtral", "gpt2", "bert", "distilbert", "t5", "swin", "convnext", "clip"),
)
"""Of tests/support/models.py."""
PROGRAMS: Final = (*EXAMPLES, *MODELS)
FAMILIES: Final = ("rms_norm", "batch_norm", "lstm", "dropout")
"""Composites with a grid of calls of their own: composites.py."""
STEPS: Final = ("llama:program", "gpt2:program", "resnet:program", "unet:program", "t5")
"""Programs whose peak of memory is measured."""
CALLS: Final = ("drawn", "float16", "bfloat16", "float32", "float64")
"""Calls of attention: attention.py. cuDNN takes its time for each shape that is new to it."""
ALL: Final = "all"


@dataclass(frozen=True)
class Job:
    """One child: the parts that it runs, one after the other, on one program in one dtype."""

    parts: tuple[str, ...]
    program: str
    dtype: str
    limit: float
    alone: bool = False
    """whether nothing may run beside it: it takes times"""

    def to_dict(self) -> dict[str, Any]:
        """For the child's command line."""
        return asdict(self)

    def only(self, parts: Iterable[str]) -> "Job | None":
        """The same with those parts alone; None if none is left."""
        kept = tuple(part for part in self.parts if part in parts)
        return Job(kept, self.program, self.dtype, self.limit, self.alone) if kept else None


def every_job() -> Iterator[Job]:
    """Times first, as nothing else runs then; what takes longest last."""
    yield Job(("bench",), "call", ALL, 90, alone=True)
    yield Job(("bench",), "capture", ALL, 150, alone=True)
    yield Job(("profile",), "the device", ALL, 100)
    yield from (Job(("choices",), f"attention, {calls}", ALL, 240) for calls in CALLS)
    yield from (Job(("composites",), name, dtype, 150) for name in FAMILIES for dtype in DTYPES)
    for dtype in DTYPES:
        for program in PROGRAMS:
            yield Job(("named", "cuts", "kernels"), program, dtype, 150)
    yield from (Job(("memory",), name, dtype, 100) for name in STEPS for dtype in DTYPES)
    yield from (Job(("inductor",), name, dtype, 240) for dtype in DTYPES for name in PROGRAMS)


PARTS: Final = tuple(dict.fromkeys(part for job in every_job() for part in job.parts))


def jobs(parts: Iterable[str], programs: Iterable[str], dtypes: Iterable[str]) -> list[Job]:
    """Those that are asked for; an empty list asks for all."""
    parts, programs, dtypes = set(parts) or set(PARTS), set(programs), set(dtypes)
    chosen = [job.only(parts) for job in every_job()]
    return [
        job
        for job in chosen
        if job is not None
        and (not programs or job.program in programs)
        and (not dtypes or job.dtype in dtypes | {ALL})
    ]
