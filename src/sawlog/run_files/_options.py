"""The options of a run, read from keywords, a dict or a YAML file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sawlog._names import did_you_mean
from sawlog._optional import require
from sawlog._validate import integer, one_of, refuse
from sawlog.errors import ArgumentError
from sawlog.factored import RANDOM_PROJECTIONS
from sawlog.run_files._encode import BYTES
from sawlog.run_files._log_names import LOG_KINDS
from sawlog.run_files._logix_options import check_words, is_dialect, translated

STATISTICS = ("mean", "variance", "covariance", "kfac", "ekfac")
PROJECTIONS = (*RANDOM_PROJECTIONS, "pca")
PRECISIONS = ("float32", "float64")
REDUCTIONS = ("auto", "mean", "sum", "tokens")
SIDES = ("input", "output")
DUPLICATES = ("error", "first", "last")
WEIGHTS = ("same", "any")
NONFINITE = ("error", "skip", "store")
FISHERS = ("empirical", "true")


@dataclasses.dataclass(frozen=True)
class Compression:
    """How gradients are projected on both sides of each layer.

    Args:
        kind: ``"orthonormal"`` or ``"gaussian"``, random projections determined by the seed, or
            ``"pca"``, the principal directions of the covariances that an earlier pass measured.
        rank: the number of dimensions to keep on each side.
        bytes: the most bytes that an example may take, in place of a rank; the largest rank that
            fits is used.
        seed: the seed of random projections.
    """

    kind: str = "orthonormal"
    rank: int | None = None
    bytes: int | None = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a run, as ``run.setup`` takes them.

    Args:
        log: what to log of each example and layer: ``"forward"``, its inputs; ``"backward"``, the
            gradients of its outputs; ``"grad"``, the gradients of its parameters; or several.
        save: which of these are stored; by default all of them.
        statistic: what to sum up over examples: ``"mean"``, ``"variance"`` and ``"covariance"`` of
            what is logged, ``"kfac"``, the covariances of both factors of the gradients,
            ``"ekfac"``, the eigenvalues corrected after K-FAC; or several.
        compress: a rank, or a dict of the options of :class:`Compression`; None stores gradients
            whole.
        dtype: of what is stored: ``"float32"``, ``"float64"``, ``"bfloat16"``, ``"float16"``, or
            ``"int8"`` with a scale for each example and layer.
        precision: of statistics while they are summed up: ``"float32"`` or ``"float64"``.
        offload: whether statistics are kept in the memory of the CPU.
        reduction: how the loss joins the examples of a batch: ``"mean"``, ``"sum"``, ``"tokens"``,
            the mean over all positions that the mask keeps, or ``"auto"``, read from the graph.
        forward: whether ``"forward"`` means the ``"input"`` of a layer or its ``"output"``.
        duplicates: what to do about an id that is logged twice: ``"error"``, or keep the
            ``"first"`` or the ``"last"``.
        interval: the seconds after which logs are on disk at the latest.
        weights: ``"same"`` raises if logs of a run come from different weights of the model;
            ``"any"`` allows it, as for a model in training.
        nonfinite: what to do about an example whose logs are infinite or NaN, also by an overflow
            of ``dtype``: ``"error"``, ``"skip"`` it with a warning, or ``"store"`` it as it is.
        fisher: which labels ``"kfac"`` and ``"ekfac"`` are measured with: ``"empirical"``, those of
            the data, or ``"true"``, labels drawn from the model's own distribution.
        fisher_seed: the seed of these labels.
    """

    log: tuple[str, ...] = ("grad",)
    save: tuple[str, ...] | None = None
    statistic: tuple[str, ...] = ()
    compress: Compression | None = None
    dtype: str = "float32"
    precision: str = "float32"
    offload: bool = False
    reduction: str = "auto"
    forward: str = "input"
    duplicates: str = "error"
    interval: float = 30.0
    weights: str = "same"
    nonfinite: str = "error"
    fisher: str = "empirical"
    fisher_seed: int = 0

    @property
    def saved(self) -> tuple[str, ...]:
        """The kinds of logs that are stored."""
        return self.log if self.save is None else self.save

    def without_statistic(self, **changes: Any) -> Options:
        """Return these options with changes, and without what concerns statistics."""
        plain: dict[str, Any] = {"statistic": (), "fisher": "empirical", "fisher_seed": 0}
        return dataclasses.replace(self, **plain, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the options in types of JSON; :func:`read` accepts them."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def read(
    given: Options | Mapping[str, Any] | str | os.PathLike[str] | None = None, **more: Any
) -> Options:
    """Read options from a dict or the path of a YAML file, and keywords, which override it.

    Raises:
        ArgumentError: an unknown key, value or combination; the message lists the valid ones.

    >>> read({"log": "grad", "statistic": ["kfac", "mean"]}, compress=64).compress.rank
    64
    """
    if isinstance(given, Options):
        given = given.to_json()
    if isinstance(given, (str, os.PathLike)):
        given = _from_yaml(Path(given))
    if given is not None and not isinstance(given, Mapping):
        kind = type(given).__name__
        raise ArgumentError(
            f"setup needs a dict or the path of a YAML file; got {kind}. Hint: "
            'run.setup(statistic="kfac", compress=16).'
        )
    values = {**(given or {}), **more}
    if is_dialect(values):
        values = translated(values)
    _check_keys(values, Options, "setup")
    read = {key: _READERS[key](value, key) for key, value in values.items()}
    options = Options(**read)
    _check_together(options)
    return options


def _from_yaml(path: Path) -> Mapping[str, Any]:
    yaml: Any = require("yaml", "yaml", "A configuration in a YAML file")
    try:
        text = path.read_text()
    except OSError as error:
        raise ArgumentError(
            f"The configuration {path} cannot be read: {error.strerror}. Hint: pass the path of a "
            "YAML file, or a dict."
        ) from error
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"The configuration {path} is not YAML: {error}") from error
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ArgumentError(f"The configuration {path} is not a mapping: {found!r:.80}")
    return found


def _check_keys(values: Mapping[str, Any], kind: type[Any], where: str) -> None:
    valid = [field.name for field in dataclasses.fields(kind)]
    check_words({key: values[key] for key in values if key not in valid}, where)
    for key in values:
        if key not in valid:
            raise ArgumentError(
                f"{where} does not know the option {key!r}. Valid are: {', '.join(valid)}. "
                f"{did_you_mean(str(key), valid)}"
            )


def _check_together(options: Options) -> None:
    lacking = [name for name in options.saved if name not in options.log]
    if lacking:
        raise ArgumentError(
            f"save={list(options.saved)} has {lacking[0]!r}, but log={list(options.log)} does "
            f"not. Hint: log={sorted({*options.log, *lacking}, key=LOG_KINDS.index)}."
        )
    if not options.saved and not options.statistic:
        raise ArgumentError("Nothing would be kept. Hint: set `save` or `statistic`.")
    needed = [name for name in ("kfac", "ekfac") if name in options.statistic]
    if needed and "grad" not in options.log:
        raise ArgumentError(
            f"statistic={needed[0]!r} needs gradients. Hint: log="
            f"{sorted({*options.log, 'grad'})}, and save=[] if they need not be stored."
        )
    if options.compress is not None and "grad" not in options.log:
        raise ArgumentError(
            'compress applies to gradients, and log does not have "grad". Hint: leave it out.'
        )
    if options.duplicates == "last" and options.statistic:
        raise ArgumentError(
            'duplicates="last" replaces an example that was logged before, which cannot be '
            'subtracted from statistics. Hint: duplicates="first", or no statistic.'
        )
    if "ekfac" in options.statistic and "kfac" in options.statistic:
        raise ArgumentError(
            'statistic="ekfac" corrects the "kfac" of an earlier pass over the data, so one '
            'pass cannot measure both. Hint: run with statistic="kfac", finalize(), then set up '
            'with statistic="ekfac" and run over the data again.'
        )
    others = [name for name in options.statistic if name not in needed]
    if options.fisher == "true" and (others or not needed):
        raise ArgumentError(
            'fisher="true" applies to statistic="kfac" and statistic="ekfac"; got statistic='
            f"{list(options.statistic)}. Hint: leave it out, or measure {others or 'K-FAC'} in "
            "a run of its own."
        )


# -- readers of single values ---------------------------------------------------------------------


def _choice(valid: Sequence[str]) -> Callable[[Any, str], str]:
    def read(value: Any, key: str) -> str:
        return str(one_of(key, value, valid))

    return read


def _choices(valid: Sequence[str]) -> Callable[[Any, str], tuple[str, ...]]:
    def read(value: Any, key: str) -> tuple[str, ...]:
        several = [value] if isinstance(value, str) else value
        if value is None or not isinstance(several, (list, tuple, set, frozenset)):
            refuse(key, f"one or several of {_listed(valid)}", value)
        for each in several:
            if each not in valid:
                refuse(key, f"one or several of {_listed(valid)}", each)
        return tuple(sorted(set(several), key=valid.index))

    return read


def _or_none(read: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, key: None if value is None else read(value, key)


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        refuse(key, "True or False", value)
    return value


def _whole(value: Any, key: str, least: int = 1) -> int:
    return integer(key, value, least)


def _seconds(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        refuse(key, "a positive number of seconds", value)
    return float(value)


def _compression(value: Any, key: str) -> Compression:
    if isinstance(value, Compression):
        value = dataclasses.asdict(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"rank": value}
    if not isinstance(value, Mapping):
        refuse(key, "a rank, such as 64, or a dict, such as {'kind': 'pca', 'rank': 64}", value)
    _check_keys(value, Compression, key)
    found = Compression(**value)
    _choice(PROJECTIONS)(found.kind, f"{key}.kind")
    _or_none(_whole)(found.rank, f"{key}.rank")
    _or_none(_whole)(found.bytes, f"{key}.bytes")
    if isinstance(found.seed, bool) or not isinstance(found.seed, int):
        refuse(f"{key}.seed", "an integer", found.seed)
    if (found.rank is None) == (found.bytes is None):
        raise ArgumentError(
            f"`{key}` must have either a rank or the bytes of an example; got rank={found.rank}, "
            f"bytes={found.bytes}. Hint: compress=64."
        )
    return found


def _listed(valid: Sequence[str]) -> str:
    return ", ".join(map(repr, valid))


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "log": _choices(LOG_KINDS),
    "save": _or_none(_choices(LOG_KINDS)),
    "statistic": _choices(STATISTICS),
    "compress": _or_none(_compression),
    "dtype": _choice(tuple(BYTES)),
    "precision": _choice(PRECISIONS),
    "offload": _flag,
    "reduction": _choice(REDUCTIONS),
    "forward": _choice(SIDES),
    "duplicates": _choice(DUPLICATES),
    "interval": _seconds,
    "weights": _choice(WEIGHTS),
    "nonfinite": _choice(NONFINITE),
    "fisher": _choice(FISHERS),
    "fisher_seed": lambda value, key: integer(key, value),
}
