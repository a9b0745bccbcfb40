"""Every way out of the IR: torch.fx, ExportedProgram, generated Python."""
