"""Replacements of torch's entry points: compile, export, AOTAutograd, Dynamo's backend."""
