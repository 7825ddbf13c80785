"""Metal shaders on Linux: a linter, code for the CPU and PTX for NVIDIA GPUs, all from the .metal files as they are."""
