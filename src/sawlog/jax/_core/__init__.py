"""The log primitive, the interpreter of traced programs, and calling a function as jit does."""
