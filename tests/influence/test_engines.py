"""Analysis on engines: pools, Dask, Ray. Curvature and scores are those of one process."""

import gc
import multiprocessing
import multiprocessing.pool
import pickle
import secrets
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

import sawlog
from sawlog import curvature
from sawlog.errors import ArgumentError
from sawlog.influence import Logs, attribute, curvature_for, self_influence
from sawlog.influence import _engines as engines
from tests.thorough import THOROUGH

KINDS = ("diagonal", "fisher", "shampoo")
SHAPES = {"a": (4, 3), "b": (30, 2)}  # "fisher" keeps rows of b, and sums the matrix of a


def rows_of(count, seed):
    random = np.random.default_rng(seed)
    return {name: random.normal(size=(count, *shape)) for name, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A store of several files, the same rows in memory, and queries."""
    path, rows = tmp_path_factory.mktemp("engines") / "rows", rows_of(28, 0)
    with sawlog.store.create(path, segment_bytes=2000) as writer:
        for start in range(0, 28, 4):
            some = {f"grad/{name}": each[start : start + 4] for name, each in rows.items()}
            writer.append(np.arange(start, start + 4), some)
    assert Logs(path).files > 4
    return path, rows, rows_of(3, 1)


def assert_same(stored, executor, kinds=KINDS, **options):
    path, rows, queries = stored
    for kind in kinds:
        fitted = curvature_for(Logs(path), kind, executor=executor)
        expected = curvature_for(Logs(rows), kind)
        ranked = self_influence(path, curvature=kind, executor=executor)
        other = self_influence(rows, curvature=kind)
        assert ranked.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(ranked.values, other.values, rtol=1e-6)
        assert {*ranked.layers} == {*SHAPES}
        found = attribute(path, queries, curvature=kind, executor=executor, **options)
        alone = attribute(rows, queries, curvature=kind, **options)
        np.testing.assert_allclose(found.values, alone.values, rtol=1e-6, atol=1e-9)
        assert found.ids.tolist() == alone.ids.tolist()
        for name in SHAPES:
            one, other = (each.solve(name, queries[name], 0.1) for each in (fitted, expected))
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


class Pickling(ThreadPoolExecutor):
    """Sends tasks and results as a pool of processes would."""

    def submit(self, fn, /, *args):
        task = pickle.dumps((fn, args))
        return super().submit(lambda: pickle.loads(run_pickled(task)))


def run_pickled(task):
    function, args = pickle.loads(task)
    return pickle.dumps(function(*args))


@pytest.mark.parametrize(
    "engine", ["threads", "pickled", "pool", *(["processes"] if THOROUGH else [])]
)
def test_engines_give_what_one_process_gives(stored, engine):
    if engine == "threads":
        with ThreadPoolExecutor(2) as executor:
            assert_same(stored, executor)
            assert_same(stored, executor, ("fisher",), top_k=3)
    elif engine == "pickled":
        with Pickling(2) as executor:
            assert_same(stored, executor, ("fisher",))
    elif engine == "processes":
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
            assert_same(stored, executor)
    else:
        with multiprocessing.pool.ThreadPool(2) as pool:
            assert_same(stored, pool, ("shampoo",))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_of_dask(stored):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert engines.as_executor(client).workers == 2
        assert_same(stored, client)
        assert_same(stored, client.get_executor(), ("fisher",), top_k=3)
        with pytest.raises(ZeroDivisionError):
            engines.as_executor(client).submit(divmod, 1, 0).result()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_ray(stored, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(secrets.token_hex(32))  # else Ray keeps one in the home folder
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "240")
    monkeypatch.setenv("RAY_agent_register_timeout_ms", "240000")
    ray = pytest.importorskip("ray")
    try:
        if not starts(ray):
            pytest.skip("Ray did not start within 30 seconds, a limit that cannot be raised")
        assert engines.as_executor(ray).workers == 2
        assert_same(stored, ray)
    finally:
        ray.shutdown()
        gc.collect()  # processes it did not wait for, while their warnings are ignored


def starts(ray):
    """Start Ray; on a busy machine it may give up."""
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        return False
    return True


class FakeRay:
    """What is used of the module ``ray``, with threads for workers."""

    __name__ = "ray"

    def __init__(self):
        self.threads, self.put_count, self.started = ThreadPoolExecutor(2), 0, False

    def is_initialized(self):
        return self.started

    def init(self, **options):
        self.started = True

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, value):
        self.put_count += 1
        return Reference(pickle.loads(pickle.dumps(value)))

    def remote(self, function):
        return Remote(self, function)


class Reference:
    def __init__(self, value):
        self.value = value


class Remote:
    def __init__(self, ray, function):
        self._ray, self._function = ray, function

    def remote(self, *args):
        given = [each.value if isinstance(each, Reference) else each for each in args]
        self._found = self._ray.threads.submit(self._function, *given)
        return self

    def future(self):
        return self._found


def test_a_task_is_sent_to_ray_once(stored):
    ray = FakeRay()
    assert_same(stored, ray, ("fisher",))
    assert ray.started
    assert ray.put_count == 5  # fitting, three times as nothing is saved; scores; self-influence


def test_what_is_no_engine():
    with pytest.raises(ArgumentError, match=r"`executor` must be a concurrent\.futures\.Executor"):
        attribute({"w": np.eye(2)}, {"w": np.eye(2)}, curvature="diagonal", executor=3)


# -- what is at hand ------------------------------------------------------------------------------


class Counting(ThreadPoolExecutor):
    """Counts results that were not taken yet."""

    def __init__(self, workers):
        super().__init__(workers)
        self.tasks, self.waiting, self.most = 0, 0, 0

    def submit(self, fn, /, *args, **kwargs):
        self.tasks += 1
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        future = super().submit(fn, *args, **kwargs)
        plain = future.result

        def result(timeout=None):
            self.waiting -= 1
            return plain(timeout)

        future.result = result
        return future


def test_partial_sums_fit_the_budget(stored):
    path, _, _ = stored
    each = 8 * sum(int(np.prod(shape)) for shape in SHAPES.values())  # bytes of one sum
    for sums in (1, 2, 6):
        with Counting(4) as executor:
            curvature_for(Logs(path), "diagonal", budget=2 * sums * each, executor=executor)
            assert (executor.tasks, executor.most) == (Logs(path).files, sums)
    with Counting(4) as executor:  # one alone does not fit
        curvature_for(Logs(path), "diagonal", budget=each, executor=executor)
        assert executor.tasks == 0


def test_sums_are_added_in_the_order_of_the_files(stored):
    path, _, queries = stored
    found = []
    for _ in range(3):
        with ThreadPoolExecutor(3) as executor:
            fitted = curvature_for(Logs(path), "shampoo", executor=executor)
            found.append(fitted.solve("a", queries["a"], 0.1))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_parts_merge(kind):
    rows = rows_of(25, 2)
    whole = curvature.row_sums(kind, SHAPES, None)
    curvature.add_blocks(whole, [rows])
    merged = curvature.row_sums(kind, SHAPES, None)
    for cut in (slice(0, 1), slice(1, 2), slice(2, 20), slice(20, 25), slice(25, 25)):
        part = merged.fresh()
        curvature.add_blocks(part, [{name: each[cut] for name, each in rows.items()}])
        assert sum(each.nbytes for each in arrays_in(part.data())) <= part.nbytes(len(rows["a"]))
        merged.merge(part.data())
    for name, layer in whole.layers().items():
        for key, array in layer.arrays().items():
            if "values" in key:
                np.testing.assert_allclose(merged.layers()[name].arrays()[key], array, rtol=1e-9)


def arrays_in(data):
    if isinstance(data, np.ndarray):
        yield data
    elif isinstance(data, (dict, list, tuple)):
        for each in data.values() if isinstance(data, dict) else data:
            yield from arrays_in(each)


def test_a_store_that_grows_meanwhile(stored, tmp_path):
    with sawlog.store.create(tmp_path / "rows", segment_bytes=100) as writer:
        for start in range(3):
            writer.append([start], {"grad/w": np.ones((1, 4))})
            writer.flush()
        logs = Logs(tmp_path / "rows")
        with pytest.raises(sawlog.errors.StoreError, match="changed while it was read"):
            logs.check_state("another")
        logs.check_state(logs.state())
