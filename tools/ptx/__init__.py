"""Metal shaders on an NVIDIA GPU: the kernel tests of tests/kernels with every shader run as PTX."""
