"""From a gradient to a score, and what a score means."""

from __future__ import annotations

from tools.drawings._pen import Pen


def gradient_of_a_layer() -> str:
    """Draw the gradient of one example: an outer product, projected on both sides."""
    pen = Pen(
        640,
        236,
        "The gradient of one example in a layer is an outer product of two projected factors.",
    )
    pen.text(16, 24, "one example in one linear layer", "bold")
    pen.box(30, 64, 22, 110, "cell")
    pen.text(41, 54, "δ", "code", "middle")
    pen.text(41, 196, "output", "small soft", "middle")
    pen.text(41, 212, "gradient", "small soft", "middle")
    pen.text(72, 124, "\N{MULTIPLICATION SIGN}", "bold", "middle")
    pen.box(92, 108, 120, 22, "cell")
    pen.text(152, 98, "xᵀ", "code", "middle")
    pen.text(152, 152, "input", "small soft", "middle")
    pen.text(230, 124, "=", "bold", "middle")
    pen.box(248, 64, 120, 110, "gap")
    pen.text(308, 116, "gradient of", "small soft", "middle")
    pen.text(308, 134, "the weight", "small soft", "middle")
    pen.text(308, 196, "outputs x inputs numbers", "small soft", "middle")
    pen.line([(380, 119), (452, 119)])
    pen.text(416, 108, "L δ, R x", "code", "middle")
    pen.text(416, 142, "project", "small soft", "middle")
    pen.box(466, 98, 42, 42, "cell")
    pen.text(487, 160, "8 x 8", "small soft", "middle")
    pen.line([(516, 119), (550, 119)])
    pen.box(558, 92, 78, 54)
    pen.text(597, 115, "row in", "small", "middle")
    pen.text(597, 133, "the store", "small", "middle")
    pen.text(466, 196, "the large matrix", "small soft")
    pen.text(466, 212, "never exists", "small soft")
    return pen.svg()


def gradient_to_score() -> str:
    """Rows, curvature, dot product, ranking."""
    pen = Pen(
        640,
        300,
        "Rows of examples times the query, divided by the curvature, are scores to rank.",
    )
    pen.text(16, 24, "training examples", "bold")
    for i, name in enumerate(("cat", "dog", "fox")):
        y = 40 + 36 * i
        pen.box(16, y, 74, 28)
        pen.text(53, y + 19, name, "small", "middle")
        pen.line([(96, y + 14), (126, y + 14)], "thin")
        pen.box(132, y, 86, 28, "cell")
        pen.text(175, y + 19, f"g{'₁₂₃'[i]}", "code", "middle")
    pen.text(175, 168, "rows in the store", "small soft", "middle")
    pen.text(16, 216, "query", "bold")
    pen.box(16, 228, 74, 28)
    pen.text(53, 247, "cat?", "small", "middle")
    pen.line([(96, 242), (126, 242)], "thin")
    pen.box(132, 228, 86, 28, "cell")
    pen.text(175, 247, "q", "code", "middle")
    pen.line([(224, 242), (250, 242)], "thin")
    pen.box(256, 216, 148, 52)
    pen.text(330, 237, "(H + d)⁻¹ q", "code", "middle")
    pen.text(330, 257, "curvature, damping", "small soft", "middle")
    pen.line([(330, 210), (330, 120)])
    pen.line([(224, 90), (280, 90)])
    pen.box(286, 68, 104, 44)
    pen.text(338, 95, "dot product", "small", "middle")
    pen.line([(396, 90), (430, 90)])
    for i, (name, score, kind) in enumerate(
        (("cat", "+3.1", "good"), ("fox", "+0.2", "soft"), ("dog", "-1.4", "bad"))
    ):
        y = 40 + 36 * i
        pen.box(438, y, 120, 28)
        pen.text(450, y + 19, name, "small")
        pen.text(548, y + 19, score, f"small bold {kind}", "end")
    pen.text(566, 59, "helps", "small good")
    pen.text(566, 131, "hurts", "small bad")
    pen.text(438, 168, "scores, best first", "small soft")
    pen.text(16, 276, "the same model, layers", "small soft")
    pen.text(16, 292, "and projection", "small soft")
    return pen.svg()


def score_line() -> str:
    """Sign and unit."""
    pen = Pen(
        640,
        190,
        "Positive scores help, negative ones hurt; score / n predicts the query's change of loss.",
    )
    pen.line([(30, 84), (610, 84)], "line", head=False)
    pen.line([(320, 76), (320, 92)], "line", head=False)
    pen.text(320, 112, "0", "small", "middle")
    pen.line([(320, 84), (560, 84)], "helps")
    pen.line([(320, 84), (120, 84)], "hurts")
    pen.text(600, 36, "positive: the example helps", "bold good", "end")
    pen.text(600, 58, "predicted loss without it: higher", "small soft", "end")
    pen.text(40, 36, "negative: the example hurts", "bold bad")
    pen.text(40, 58, "predicted loss without it: lower", "small soft")
    pen.box(96, 130, 448, 40)
    pen.text(320, 155, "predicted loss without the example = loss now + score / n", "", "middle")
    return pen.svg()


SCORES = {
    "gradient-of-a-layer": gradient_of_a_layer,
    "gradient-to-score": gradient_to_score,
    "score-line": score_line,
}
