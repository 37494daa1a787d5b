"""Influence by hand: dense float64 matrices, one for each layer."""

import numpy as np

import sawlog
from sawlog.curvature import Relative, Sampled, Typical
from sawlog.run_files._encode import SCALE, decode
from tests.torch.programs import Program


def logged(root, program: Program, project="run", **options):
    """A run with the whole gradients of a program in float64, and its path."""
    run = sawlog.init(project=project, root=root)
    run.setup(dtype="float64", precision="float64", **{"statistic": "kfac", **options})
    run.watch(program.model, quiet=True)
    with run(data_id=np.arange(program.size)):
        program.of().backward()
    run.finalize()
    return run


def rows_of(run):
    """The rows of each layer as they are stored, ``[n, ...]``."""
    with sawlog.store.open(run.store_path) as reader:
        columns = {name: np.array(reader.read(name)) for name in reader.names}
    names = [n for n in columns if n.startswith("grad/") and not n.endswith(SCALE)]
    assert names
    return {n.removeprefix("grad/"): decode(columns, n).astype(np.float64) for n in names}


def _matrix(factor):
    return np.diag(factor) if factor.ndim == 1 else factor


def _blocks(matrices):
    """One matrix with these on its diagonal."""
    size = sum(map(len, matrices))
    whole, at = np.zeros((size, size)), 0
    for each in matrices:
        whole[at : at + len(each), at : at + len(each)] = each
        at += len(each)
    return whole


def _by_group(left, right, join):
    """``join`` of both factors, for each group of a layer that has some."""
    if left.ndim == 3:
        return _blocks([join(a, b) for a, b in zip(left, right, strict=True)])
    return join(_matrix(left), _matrix(right))


def _ekfac(rows, left, right):
    """``Q diag(mean of (Q^T g)^2) Q^T``."""

    def basis(a, b):
        return np.kron(np.linalg.eigh(a)[1], np.linalg.eigh(b)[1])

    turn = _by_group(left, right, basis)
    flat = rows.reshape(len(rows), -1)
    return turn @ np.diag(((flat @ turn) ** 2).mean(0)) @ turn.T


def _root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    values = np.where(values > 1e-13 * values.max(), values, 0.0)  # the root of rounding is large
    return vectors * np.sqrt(values) @ vectors.T


def _shampoo(rows):
    def join(a, b):
        return _root(np.kron(a, b) / np.trace(a))

    left = (rows @ np.swapaxes(rows, -1, -2)).mean(0)
    right = (np.swapaxes(rows, -1, -2) @ rows).mean(0)
    return _by_group(left, right, join)


def hessian(kind, rows, factors=None):
    """The dense curvature of a layer, ``[elements, elements]``."""
    flat = rows.reshape(len(rows), -1)
    if kind == "identity":
        return np.eye(flat.shape[1])
    if kind == "diagonal":
        return np.diag((flat**2).mean(0))
    if kind == "fisher":
        return sum(np.outer(g, g) for g in flat) / len(flat)
    if kind == "kfac":
        return _by_group(*factors, np.kron)
    if kind == "ekfac":
        return _ekfac(rows, *factors)
    assert kind == "shampoo"
    return _shampoo(rows)


def added(damping, name, dense, kind, count):
    """The damping of a layer whose curvature is of so many examples, as a number."""
    if isinstance(damping, dict):
        return damping[name]
    if damping is None:
        damping = Sampled(0.1, 3) if kind == "fisher" else Sampled(0.05, 1)
    if isinstance(damping, Sampled):
        parts = Relative(damping.share), Typical(damping.noise / count)
        return sum(added(part, name, dense, kind, count) for part in parts)
    if isinstance(damping, Typical):
        return damping.share * np.trace(dense @ dense) / np.trace(dense)
    if isinstance(damping, Relative):
        return damping.share * np.trace(dense) / len(dense)
    return damping


def influence(kind, rows, queries, damping, factors=None):
    """``q^T (H + dI)^-1 g`` of every layer: name -> ``[queries, n]``."""
    found = {}
    for name, own in rows.items():
        dense = hessian(kind, own, None if factors is None else factors(name))
        d = 0.0 if kind == "identity" else added(damping, name, dense, kind, len(own))
        damped = dense + d * np.eye(len(dense))
        g, q = own.reshape(len(own), -1), queries[name].reshape(len(queries[name]), -1)
        found[name] = q @ np.linalg.solve(damped, g.T)
    return found


def close(found, expected, rtol=1e-8, err_msg=""):
    """Equal to 1e-8 of the greatest number."""
    expected = np.asarray(expected)
    atol = rtol * np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=err_msg)
