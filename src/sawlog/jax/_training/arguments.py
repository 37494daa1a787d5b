"""The arguments of ``through_training``, checked and turned into the parts of a runner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog import _validate
from sawlog._paths import absolute
from sawlog.errors import ArgumentError
from sawlog.jax._training.program import TrainingProgram, from_loss, from_step, takes_key
from sawlog.jax._training.replay import Replay
from sawlog.jax._training.run_bank import contents, digest
from sawlog.jax._training.run_data import Epochs, Order, UserBatches, run_keys, subset_weights
from sawlog.jax._training.runner import Runner
from sawlog.jax._training.states import ChangedNumber


def runner_of(
    data: Any,
    queries: Any = None,
    *,
    init: Any,
    loss: Any = None,
    optimizer: Any = None,
    step: Any = None,
    metric: Any = None,
    batch_size: Any = None,
    epochs: Any = None,
    batches: Any = None,
    subset: Any = 0.5,
    seed: int = 0,
    memory: Any = "auto",
    query_batch: Any = None,
    spill: Any = None,
    loop: str = "scan",
    final_state: Any = None,
    guess: bool = False,
) -> Runner:
    """Return what finishes one run after another, for the arguments of ``through_training``."""
    _validate.one_of("loop", loop, ("scan", "python"))
    count, seed = rows_of("data", data), _validate.integer("seed", seed, 0)
    order = order_of(batch_size, epochs, batches, count)
    program = program_of(loss, optimizer, step, init, run_keys(seed, 0)[0])
    if program.layout.has_numbers:
        weights = subset_weights(subset, count, 0, seed)
        width = order(run_keys(seed, 0)[1], weights).shape[1]
        batch = jax.tree.map(lambda x: jnp.asarray(np.resize(x, (width, *np.shape(x)[1:]))), data)
        program = _with_numbers(program, (loss, optimizer, step, init), batch, seed)
    return Runner(
        program,
        Replay(program, data, by_hand=loop == "python"),
        order,
        subset,
        seed,
        count,
        metric_of(metric, loss, queries),
        queries,
        _memory(memory, spill),
        _validate.optional(_validate.positive_integer, "query_batch", query_batch),
        None if spill is None else absolute(spill),
        final_state,
        guess,
    )


def _memory(memory: Any, spill: Any) -> Any:
    if memory == "auto":
        return "auto" if spill is None else "sqrt"
    return memory if memory in ("sqrt", "log") else _validate.byte_size("memory", memory)


def _with_numbers(
    program: TrainingProgram, given: tuple[Any, Any, Any, Any], batch: Any, seed: int
) -> TrainingProgram:
    """Return a program in which the Python numbers that steps change are arrays of the state."""
    key, _, step_key = run_keys(seed, 0)
    weights = jnp.ones(len(jax.tree.leaves(batch)[0]))
    changing: set[int] = set()
    while True:
        try:
            arrays = program.start(key)
            own = weights.astype(arrays[0][0].dtype)
            jax.eval_shape(program.advance, arrays, batch, own, step_key)
            return program
        except ChangedNumber as error:
            if error.place in changing:
                raise
            changing.add(error.place)
            program = program_of(*given, key, changing)


def program_of(
    loss: Any, optimizer: Any, step: Any, init: Any, key: Any, changing: Collection[int] = ()
) -> TrainingProgram:
    """Return the program that ``loss`` and ``optimizer``, or ``step``, describe."""
    _validate.function("init", init)
    if (loss is None) == (step is None):
        raise ArgumentError(
            "Training must be described by either `loss` and `optimizer`, or `step`; got "
            f"{'both' if step is not None else 'neither'}."
        )
    if step is not None:
        if optimizer is not None:
            raise ArgumentError("`optimizer` is for `loss`; `step` applies its own updates.")
        return from_step(_validate.function("step", step), init, key, changing)
    if optimizer is None:
        raise ArgumentError("`loss` needs an `optimizer`. Hint: optimizer=optax.adam(1e-3).")
    return from_loss(_validate.function("loss", loss), optimizer, init, key, changing)


def metric_of(metric: Any, loss: Any, queries: Any) -> Callable[..., Any]:
    """Return the metric; the default is the loss."""
    if metric is not None:
        return _validate.function("metric", metric)
    if loss is None or queries is None:
        raise ArgumentError(
            "`metric` is missing: it is the loss by default, which needs `loss` and `queries`. "
            "Hint: metric=lambda state, batch: ..., one number for each query of the batch."
        )
    if takes_key(loss, 2):
        raise ArgumentError(
            "`metric` is missing: `loss` takes a key, as with dropout, and queries are evaluated "
            "without one. Hint: metric=lambda params, batch: ..., without dropout."
        )
    return loss


def order_of(batch_size: Any, epochs: Any, batches: Any, count: int) -> Order:
    """Return the order of batches of each run."""
    if (batches is None) == (batch_size is None) or (batch_size is None) != (epochs is None):
        raise ArgumentError(
            "The order of examples must be given by `batch_size` and `epochs`, or by `batches`."
        )
    if batches is not None:
        return UserBatches(batches, count)
    size = _validate.positive_integer("batch_size", batch_size)
    if size > count:
        raise ArgumentError(
            f"`batch_size` is {size}, but there are only {count} examples. Hint: at most {count}."
        )
    return Epochs(size, _validate.positive_integer("epochs", epochs))


def rows_of(name: str, tree: Any) -> int:
    """Return the number of rows that all arrays of a pytree have."""
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(tree)}
    if len(sizes) != 1 or sizes in ({()}, {(0,)}):
        raise ArgumentError(
            f"The arrays of `{name}` must have the same number of rows, at least one; got "
            f"{sorted(sizes)}."
        )
    return int(sizes.pop()[0])


def ids_of(name: str, given: Sequence[Any] | None, count: int) -> np.ndarray:
    """Return ids; 0, 1, ... by default."""
    if given is None:
        return np.arange(count)
    found = np.asarray(given)
    if found.shape != (count,) or len(set(found.tolist())) != count:
        raise ArgumentError(f"`{name}` must be {count} different ids; got the shape {found.shape}.")
    return found


def fingerprint(runner: Runner, data: Any, queries: Any) -> dict[str, Any]:
    """Return what the scores of runs depend on."""
    weights = runner.weights(0)
    start, inputs, _ = runner.begin(0, weights)
    batch = jax.tree.map(lambda x: np.asarray(x[:1]), data)
    given = start, batch, inputs.weights[:1], inputs.keys[0]
    step = jax.make_jaxpr(runner.program.advance)(*given)
    along = [jnp.ones_like(leaf)[None] for leaf in start[0]]
    back = jax.make_jaxpr(runner.program.pull_back)(*given, along)  # has custom derivatives
    model = runner.program.model(runner.program.layout.join(start))
    one = () if queries is None else (jax.tree.map(lambda x: np.asarray(x[:1]), queries),)
    arrays, static = jax.tree.flatten(model)
    numeric = [hasattr(leaf, "dtype") for leaf in arrays]

    def measured(own: list[Any], *batch: Any) -> Any:
        given = iter(own)
        leaves = [next(given) if n else leaf for leaf, n in zip(arrays, numeric, strict=True)]
        return runner.metric(jax.tree.unflatten(static, leaves), *batch)

    metric = jax.make_jaxpr(measured)([a for a, n in zip(arrays, numeric, strict=True) if n], *one)
    return {
        "format": 3,
        "data": digest(data),
        "queries": digest(queries),
        "program": digest(start, *contents(step), *contents(back)),
        "metric": digest(*contents(metric)),
        "batches": digest(inputs.order),
        "subset": digest(weights),
        "seed": int(runner.seed),
    }
