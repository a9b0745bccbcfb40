"""A module with tensors, which programs of tests are the first to import."""

import torch

TABLE = torch.arange(8.0)
