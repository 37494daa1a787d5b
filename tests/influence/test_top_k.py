"""The best of a stream of scores are those of all scores at once, whatever the blocks."""

import numpy as np
import pytest

from sawlog.influence._top_k import TopK

KEYS = {"positive": lambda x: x, "negative": lambda x: -x, "absolute": abs}


def by_hand(scores, k, sign):
    """Sort all of them: the best first, equal ones as they came, and what is not finite last."""
    rows = []
    for row in scores.tolist():
        keys = [KEYS[sign](x) if np.isfinite(x) else -np.inf for x in row]
        rows.append(sorted(range(len(row)), key=lambda i, keys=keys: (-keys[i], i))[:k])
    return np.array(rows)


@pytest.mark.parametrize("sign", KEYS)
@pytest.mark.parametrize("k", [1, 3, 30])
@pytest.mark.parametrize("block", [1, 4, 100])
def test_blocks(sign, k, block):
    random = np.random.default_rng(k)
    scores = random.integers(-4, 5, (3, 23)).astype(float)  # many are equal
    scores[0, [2, 9]] = np.nan, np.inf
    scores[1, 5:] -= 20  # of one query all of the best come first
    scores[2, :18] = -np.inf
    best, ids = TopK(k, sign), np.arange(100, 123)
    parts = []
    for start in range(0, 23, block):
        own = scores[:, start : start + block], ids[start : start + block]
        best.add(*own)
        parts.append(TopK(k, sign))
        parts[-1].add(*own)
    want = by_hand(scores, k, sign)
    for found in (best, TopK.joined(parts)):
        assert found.ids.tolist() == ids[want].tolist()
        np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, want, 1))
