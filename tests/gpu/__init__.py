"""What only a device can show: cuts, graphs, kernels, choices and memory, held against eager there.

`python -m tests.gpu` runs it; README.md says what each part compares.
"""
