"""The public modules of sawlog."""

#: The public modules. The first that offers an object is its home.
MODULES = (
    "sawlog",
    "sawlog.jax",
    "sawlog.loggers",
    "sawlog.torch",
    "sawlog.capture",
    "sawlog.huggingface",
    "sawlog.lightning",
    "sawlog.accelerate",
    "sawlog.influence",
    "sawlog.curvature",
    "sawlog.factored",
    "sawlog.store",
    "sawlog.sinks",
    "sawlog.records",
    "sawlog.inspect",
    "sawlog.report",
    "sawlog.example_data",
    "sawlog.testing",
    "sawlog.errors",
    "sawlog.logix",
    "sawlog.analysis",
    "sawlog.utils",
    "sawlog.cli",
)
