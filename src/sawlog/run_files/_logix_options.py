"""Options of LogIX: translate them, or name the sawlog option to use instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sawlog.errors import ArgumentError
from sawlog.run_files._log_names import LOG_KINDS

_STATISTICS = {
    "mean": "mean",
    "variance": "variance",
    "covariance": "covariance",
    "corrected_eigval": "ekfac",
}

# Keys of LogIX without a translation, and what to write instead.
WORDS = {
    "root_dir": "sawlog.init(project, root=...)",
    "logging": "the options below it, as dtype and offload, on their own",
    "lora": "compress={'rank': 64}",
    "influence": "options of run.influence.compute_influence_all",
    "flush_threshold": "interval, in seconds; files are written in the background",
    "num_workers": "nothing: files are written in the background",
    "cpu_offload": "offload",
    "log_dtype": "dtype",
    "rank": "compress={'rank': 64}",
    "init": "compress={'kind': 'pca', 'rank': 64}, or 'orthonormal' for random projections",
    "parameter_sharing": "nothing: random projections take no memory on disk",
    "parameter_sharing_groups": "nothing: random projections take no memory on disk",
    "hessian": "statistic='kfac', then curvature='ekfac' or 'fisher' where scores are computed",
    "damping": "damping= where scores are computed",
    "relative_damping": "damping=sawlog.curvature.Relative(0.1) where scores are computed",
    "mode": "mode= where scores are computed",
    "flatten": "nothing",
}


def is_dialect(given: Mapping[str, Any]) -> bool:
    """Return whether options list actions by kind of log, such as ``{"grad": ["log"]}``."""
    named = [key for key in given if key in LOG_KINDS]
    return bool(named) and all(isinstance(given[key], (list, tuple)) for key in named)


def translated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return LogIX options as options of sawlog.

    Covariances of both forward and backward logs become K-FAC.

    Raises:
        ArgumentError: they request different statistics for different kinds of logs.

    >>> translated({"grad": ["log"], "forward": ["covariance"], "backward": ["covariance"]})
    {'log': ['grad'], 'save': ['grad'], 'statistic': ['kfac']}
    """
    plugins = {kind: list(given.get(kind, ())) for kind in LOG_KINDS}
    for kind, own in plugins.items():
        for each in own:
            if each not in ("log", *_STATISTICS):
                valid = ", ".join(map(repr, ("log", *_STATISTICS)))
                raise ArgumentError(f"`{kind}` must be a list of {valid}; got {each!r}.")
    statistics: set[str] = set()
    if all("covariance" in plugins[kind] for kind in ("forward", "backward")):
        statistics.add("kfac")
        for kind in ("forward", "backward"):
            plugins[kind].remove("covariance")
    used = [kind for kind in LOG_KINDS if plugins[kind]]
    asked = {kind: {_STATISTICS[e] for e in plugins[kind] if e != "log"} for kind in used}
    several = {frozenset(own - {"ekfac"}) for own in asked.values()}
    if len(several) > 1:
        raise ArgumentError(
            f"setup({dict(given)!r}) requests different statistics for different logs. Hint: in "
            'sawlog a statistic covers everything that is logged: run.setup(log=["forward", '
            '"grad"], statistic="covariance"); K-FAC is statistic="kfac".'
        )
    statistics |= set().union(*asked.values()) if asked else set()
    saved = [kind for kind in used if "log" in plugins[kind]]
    if statistics & {"kfac", "ekfac"} and "grad" not in used:
        used.append("grad")
    rest = {key: value for key, value in given.items() if key not in LOG_KINDS}
    return {"log": used, "save": saved, "statistic": sorted(statistics), **rest}


def check_words(values: Mapping[str, Any], where: str) -> None:
    """Raise an ArgumentError that says what to write instead of keys of LogIX."""
    known = [key for key in values if key in WORDS]
    if known:
        listed = "; ".join(f"instead of {key!r}: {WORDS[key]}" for key in known)
        raise ArgumentError(f"{where} does not have the options of LogIX. Hint: {listed}.")
