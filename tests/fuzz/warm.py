"""Imported by the process that forks the children: has there what each child needs.

It must not run a backward, so the program that it runs has nothing to differentiate.
"""

import gc
import warnings

from tests.fuzz.verdict import judged
from tests.support import verified

PROGRAM = """
import torch

def make():
    return torch.sin

def inputs(call):
    return (torch.ones(2),), {}

LOSS, DYNAMIC = None, False
"""

verified.everywhere()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    judged(PROGRAM)
gc.collect()
gc.freeze()
