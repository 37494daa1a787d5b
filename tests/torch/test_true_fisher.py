"""fisher="true": K-FAC and EK-FAC of labels that are drawn from the model."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sawlog
from sawlog.capture._label_sampling import LabelSampling
from sawlog.errors import ArgumentError, CaptureError
from sawlog.torch._sampled_labels import _pass, drawn_labels

CLASSES = 3


@pytest.fixture
def problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, CLASSES))
    return model.double(), torch.randn(4, 2).double(), torch.tensor([0, 1, 2, 0])


def _run(tmp_path, model, name="run", **options):
    run = sawlog.init(project=name, root=tmp_path)
    run.setup(precision="float64", dtype="float64", fisher="true", **options)
    run.watch(model, quiet=True)
    return run


def _rows(model, x, label):
    """The gradient of one example as matrices with the bias as the last column, in float64."""
    loss = F.cross_entropy(model(x[None]), label[None])
    grads = torch.autograd.grad(loss, list(model.parameters()))
    pairs = zip(grads[::2], grads[1::2], strict=True)
    return [torch.cat([w, b[:, None]], 1).numpy() for w, b in pairs]


def test_statistics_are_those_of_the_drawn_labels_and_these_of_the_model(tmp_path, problem):
    model, x, y = problem
    seen = {}
    run = _run(tmp_path, model, statistic="ekfac")
    copies = 400  # of every example, each with an id and labels of its own
    ids = np.arange(4 * copies)

    def step(model, batch):
        logits = model(x[batch % 4])
        labels = run.labels(logits, y[batch % 4])
        seen.setdefault("labels", []).append(labels)
        return F.cross_entropy(logits, labels)

    found = run.extract(step, torch.from_numpy(ids).split(534), quiet=True, check=False)
    assert found.passes == ("K-FAC", "EK-FAC", "rows")
    drawn, again, given = (torch.cat(seen["labels"][n : n + 3]) for n in (0, 3, 6))
    assert torch.equal(drawn, again)
    assert torch.equal(given, y[ids % 4])
    # how often each class was drawn, against the model's own probabilities
    wanted = torch.softmax(model(x), 1).detach().numpy()
    often = np.stack([(drawn.numpy()[i::4][:, None] == range(CLASSES)).mean(0) for i in range(4)])
    assert np.all(np.abs(often - wanted) < 4.5 * np.sqrt(wanted * (1 - wanted) / copies))
    # the factors and eigenvalues, against a dense computation with these labels
    each = {(i, c): _rows(model, x[i], torch.tensor(c)) for i in range(4) for c in range(CLASSES)}
    share = {key: often[key] / 4 for key in each}
    for layer, block in enumerate(("0.weight", "2.weight")):
        rows = {key: several[layer] for key, several in each.items()}
        left, right = run.statistics.kfac(block)
        # one position: the outer product of the output gradient and of the input with a one
        outputs = sum(s * rows[k][:, -1:] @ rows[k][:, -1:].T for k, s in share.items())
        np.testing.assert_allclose(left, outputs, rtol=1e-9, atol=1e-12)
        bases = run.statistics.eigenbasis(block)
        values = sum(s * (bases[0].T @ rows[k] @ bases[1]) ** 2 for k, s in share.items())
        np.testing.assert_allclose(run.statistics.ekfac(block), values, rtol=1e-9, atol=1e-12)
        assert right.shape == (rows[0, 0].shape[1],) * 2
    # the exact expectation over classes, to within the error of that many samples
    exact = (np.einsum("nc,cd->cd", wanted, np.eye(CLASSES)) - wanted.T @ wanted) / 4
    np.testing.assert_allclose(run.statistics.kfac("2.weight")[0], exact, atol=0.03)
    assert run.statistics.fisher == "true"
    stored = sawlog.store.open(run.store_path).gather(ids[:4])
    for i in range(4):
        np.testing.assert_allclose(stored["grad/0.weight"][i], _rows(model, x[i], y[i])[0])


def test_labels_depend_on_the_seed_and_the_id_alone():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
    labels[0, :2] = labels[2, 3:] = -100
    together = drawn_labels(logits, labels, LabelSampling(0, np.arange(3)))
    assert torch.equal(together == -100, labels == -100)
    assert not torch.equal(together, labels)
    for i in range(3):
        keep = labels[i] != -100  # another padding
        own = drawn_labels(
            logits[i, keep][None], labels[i, keep][None], LabelSampling(0, np.array([i]))
        )
        assert torch.equal(own[0], together[i, keep])
    flat = drawn_labels(logits.reshape(15, 7), labels.reshape(15), LabelSampling(0, np.arange(3)))
    assert torch.equal(flat.reshape(3, 5), together)
    classes_second = drawn_labels(logits.mT, labels, LabelSampling(0, np.arange(3)))
    assert torch.equal(classes_second, together)
    sequence_first = drawn_labels(
        logits.movedim(1, 0), labels.T, LabelSampling(0, np.arange(3)), axis=-1
    )
    assert torch.equal(sequence_first.T, together)
    shifted = drawn_labels(logits, labels, LabelSampling(0, np.arange(3)), shift=1)
    own = drawn_labels(logits[:, :-1], labels[:, 1:], LabelSampling(0, np.arange(3)))
    assert torch.equal(shifted[:, 1:], own)
    assert torch.equal(shifted[:, :1], labels[:, :1])
    assert not torch.equal(drawn_labels(logits, labels, LabelSampling(1, np.arange(3))), together)
    several = LabelSampling(0, np.arange(3))
    first, second = (drawn_labels(logits, labels, several) for _ in range(2))
    assert torch.equal(first, together)
    assert not torch.equal(first, second)  # two outputs of one model have labels of their own


def test_other_distributions():
    sampling = LabelSampling(0, np.arange(4000))
    outputs = torch.tensor([-1.0, 2.0]).expand(4000, 2)
    flips = drawn_labels(outputs, torch.zeros(4000, 2), sampling, distribution="bernoulli")
    assert flips.mean(0).tolist() == pytest.approx(torch.sigmoid(outputs[0]).tolist(), abs=0.03)
    normal = drawn_labels(outputs, torch.zeros(4000, 2), sampling, distribution="normal")
    assert normal.mean(0).tolist() == pytest.approx([-1.0, 2.0], abs=0.04)
    assert normal.std(0).tolist() == pytest.approx([0.5**0.5] * 2, abs=0.03)
    soft = drawn_labels(outputs, torch.full((4000, 2), 0.5), sampling)
    assert soft.sum(1).eq(1).all()
    assert float(soft[:, 1].mean()) == pytest.approx(
        float(torch.softmax(outputs[0], 0)[1]), abs=0.02
    )
    own = drawn_labels(
        outputs, torch.zeros(4000), sampling, distribution=lambda out, generator: out[:, 0] + 1
    )
    assert own.eq(0).all()


@pytest.mark.parametrize(
    ("shape", "axis", "at"), [((2, 4), None, 1), ((2, 4, 3), None, 1), ((2, 3, 4), -1, 2)]
)
def test_probabilities_as_labels_are_drawn_along_the_axis_of_the_classes(shape, axis, at):
    torch.manual_seed(0)
    logits = torch.randn(shape)
    sampling = [LabelSampling(0, np.array(["a", "b"])) for _ in range(2)]
    soft = drawn_labels(logits, torch.softmax(logits, at), sampling[0], axis=axis)
    classes = torch.zeros([size for n, size in enumerate(shape) if n != at]).long()
    hard = drawn_labels(logits, classes, sampling[1], axis=at)
    assert soft.shape == logits.shape
    assert torch.equal(soft.argmax(at), hard)
    assert soft.sum(at).eq(1).all()
    assert soft.amax(at).eq(1).all()


REFUSED = [
    (torch.zeros(2, 3, 3), torch.zeros(2, 3).long(), {}, "which axis has the classes. .*axis=2"),
    (torch.zeros(2, 3), torch.zeros(3).long(), {}, "not one class for each output"),
    (torch.zeros(2, 3), torch.zeros(2), {"distribution": "normal"}, "have the shape of outputs"),
    (torch.zeros(2, 3), torch.zeros(2).long(), {"distribution": "gamma"}, "must be one of 'cat"),
    (torch.zeros(3, 2), torch.zeros(3).long(), {}, "do not belong to 2 examples"),
    (torch.zeros(2, 3), [0, 1], {}, "takes two tensors"),
]


@pytest.mark.parametrize(("outputs", "labels", "options", "message"), REFUSED)
def test_refused_shapes(outputs, labels, options, message):
    with pytest.raises(ArgumentError, match=message):
        drawn_labels(outputs, labels, LabelSampling(0, np.arange(2)), **options)


def test_passes_that_would_be_wrong_are_refused(tmp_path, problem):
    model, x, y = problem
    run = _run(tmp_path, model, statistic="kfac")
    with pytest.raises(ArgumentError, match="one pass cannot do both"), run(data_id=range(4)):
        pass
    run.setup(statistic="kfac", fisher="true", save=[])
    with pytest.raises(CaptureError, match=r"run\.labels was not called"), run(data_id=range(4)):
        F.cross_entropy(model(x), y).backward()
    with run(data_id=range(4)):  # nothing of it was measured
        logits = model(x)
        F.cross_entropy(logits, run.labels(logits, y)).backward()
    run.finalize()
    assert torch.equal(run.labels(logits, y), y)
    assert run.statistics.examples == 4
    for other in ({"statistic": "kfac"}, {"statistic": "kfac", "fisher": "true", "fisher_seed": 1}):
        run.setup(**other, save=[])
        with pytest.raises(ArgumentError, match="another setup: fisher"), run(data_id=[9]):
            pass
    run.setup(statistic="ekfac", save=[])
    message = 'K-FAC at .* was measured with fisher="true", and EK-FAC .* fisher="empirical"'
    with pytest.raises(ArgumentError, match=message), run(data_id=range(4)):
        pass


def test_a_class_without_probability_is_never_drawn():
    """Neither by the least number, 0, nor by one that is just where two classes meet."""
    logits = torch.tensor([[-math.inf, 0, -math.inf, 0, -math.inf]]).expand(5, -1)
    greatest = math.nextafter(1.0, 0.0)
    numbers = torch.tensor([0.0, 0.25, 0.5, 0.75, greatest], dtype=torch.float64)
    assert _pass(logits, numbers[:, None]).tolist() == [1, 1, 3, 3, 3]
