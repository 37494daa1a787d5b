"""Headers with right checksums and wrong contents."""

# ruff: noqa: F401, F811  (fixtures are imported)

import json
import os

import pytest

from sawlog.errors import DamagedStoreError, NewerStoreError
from tests.thorough import THOROUGH

from .forge import Forged, sealed
from .hostile_stores import HUGE, QUESTIONS, ask, ask_everything, ask_open, path, segment_of, sound


def by_turns(questions, turn):
    """One of the questions, or all in a thorough run."""
    return questions if THOROUGH else questions[turn % len(questions) :][:1]


def at(*keys):
    """A change of one value, somewhere in the document or the description."""

    def change(value):
        def apply(forged):
            where = forged
            for key in keys[:-1]:
                where = getattr(where, key) if isinstance(where, Forged) else where[key]
            if value is GONE:
                del where[keys[-1]]
            else:
                where[keys[-1]] = value

        return apply

    return change


GONE = object()

ODD = [GONE, None, True, -1, 0, 1.5, HUGE, "x", "", [], {}, [[]], {"x": 1}, ["x"], 2**63]

PLACES = {
    "version": ("said", "version"),
    "store": ("said", "store"),
    "writer": ("said", "writer"),
    "sequence": ("said", "sequence"),
    "order": ("said", "order"),
    "clock": ("said", "order", 0),
    "order of a writer": ("said", "order", 1),
    "chunks": ("said", "chunks"),
    "chunk": ("said", "chunks", 0),
    "table": ("said", "chunks", 0, "table"),
    "name in a table": ("said", "chunks", 0, "table", 0),
    "rows": ("said", "chunks", 0, "rows"),
    "ids": ("said", "chunks", 0, "ids"),
    "series": ("said", "chunks", 2, "series"),
    "rows of a series": ("said", "chunks", 2, "rows"),
    "steps": ("said", "chunks", 2, "steps"),
    "step": ("said", "chunks", 2, "steps", 0),
    "mask": ("said", "chunks", 2, "mask"),
    "attrs": ("said", "chunks", 2, "attrs"),
    "types": ("said", "types"),
    "type": ("said", "types", "text"),
    "dtype of a type": ("said", "types", "text", "dtype"),
    "shape of a type": ("said", "types", "text", "shape"),
    "codec": ("said", "types", "text", "codec"),
    "checksums": ("said", "checksums"),
    "checksums of one": ("said", "checksums", "grad"),
    "rows of a block": ("said", "checksums", "grad", 0),
    "replaces": ("said", "replaces"),
    "tensor": ("document", "grad"),
    "dtype": ("document", "grad", "dtype"),
    "shape": ("document", "grad", "shape"),
    "rows of a tensor": ("document", "grad", "shape", 0),
    "offsets": ("document", "grad", "data_offsets"),
    "offset": ("document", "grad", "data_offsets", 0),
    "ids tensor": ("document", "sawlog.ids/grad"),
    "shape of ids": ("document", "sawlog.ids/grad", "shape"),
    "shape of steps": ("document", "sawlog.step/step/loss", "shape"),
}


@pytest.mark.turns
@pytest.mark.parametrize("place", PLACES)
def test_odd_values_in_a_header(path, place, capsys):
    """Refused, or as good as before; a place at which every value passes is not looked at."""
    file = segment_of(path)
    original, refused = file.read_bytes(), []
    for value in ODD:
        forged = Forged.of(file)
        try:
            at(*PLACES[place])(value)(forged)
        except (KeyError, TypeError):
            continue  # nothing to take away
        file.write_bytes(forged.bytes())
        refused.append(ask(path, ask_open))
        for question in by_turns(("skip", "verify", "show"), len(refused)):
            ask(path, QUESTIONS[question])
        file.write_bytes(original)
    capsys.readouterr()
    assert any(refused)
    for error in refused:
        if error is not None:
            assert file.name in str(error) or isinstance(error, NewerStoreError), error


def swap(forged):
    one, two = forged.document["loss"], forged.document["sawlog.step/step/loss"]
    one["data_offsets"], two["data_offsets"] = two["data_offsets"], one["data_offsets"]
    one["dtype"] = "I64"


def overlap(forged):
    first = forged.document["loss"]["data_offsets"]
    forged.document["sawlog.step/step/loss"]["data_offsets"] = list(first)


def fewer_ids(forged):
    forged.said["chunks"][0]["rows"] = 2


def one_more_chunk(forged):
    forged.said["chunks"].append(forged.said["chunks"][0])


def notes_that_do_not_add_up(forged):
    forged.said["chunks"][2]["attrs"] = [[2, {}]]


def deep_notes(forged):
    deep = {}
    for _ in range(500):
        deep = {"a": deep}
    forged.said["chunks"][2]["attrs"] = [[3, deep]]


def replaces_itself(forged):
    said = forged.said
    said["replaces"] = {said["writer"]: [[said["sequence"], said["sequence"]]]}


def objects(forged):
    forged.said["types"]["text"]["dtype"] = "|O"


def big_endian(forged):
    forged.said["types"]["text"]["dtype"] = ">M8[s]"


def subarray(forged):
    forged.said["types"]["text"]["dtype"] = "(2,)<i4"


def unknown_codec(forged):
    forged.said["types"]["text"]["codec"] = "zstd"


def a_codec_for_a_plain_tensor(forged):
    forged.said["types"]["grad"] = {"dtype": "float32", "shape": [3, 2], "codec": "zstd"}


def endless_empty_rows(forged):
    chunk = {"series": "void", "rows": 10**18, "steps": []}
    forged.said["chunks"].append(chunk)
    end = max(entry["data_offsets"][1] for entry in forged.document.values())
    forged.document["void"] = {
        "dtype": "F32",
        "shape": [10**18, 0],
        "data_offsets": [end, end],
    }
    forged.said["checksums"]["void"] = [1, 1]


CRAFTED = [
    swap,
    overlap,
    fewer_ids,
    one_more_chunk,
    notes_that_do_not_add_up,
    deep_notes,
    replaces_itself,
    objects,
    big_endian,
    subarray,
    unknown_codec,
    a_codec_for_a_plain_tensor,
    endless_empty_rows,
]


@pytest.mark.parametrize("change", CRAFTED, ids=lambda change: change.__name__)
def test_crafted_headers(path, change, capsys):
    file = segment_of(path)
    forged = Forged.of(file)
    change(forged)
    file.write_bytes(forged.bytes())
    refused = ask_everything(path)
    assert isinstance(refused["open"], DamagedStoreError | NewerStoreError), refused
    if not isinstance(refused["open"], NewerStoreError):
        assert refused["skip"] is None
        assert refused["repair"] is None
        assert refused["open again"] is None


def test_the_forger_can_be_honest(path):
    """Without a change its files are as good as ours, so refusals come from the change."""
    for file in (path / "segments").iterdir():
        file.write_bytes(Forged.of(file).bytes())
    for file in (path / "store.json", *(path / "schema").iterdir()):
        file.write_bytes(sealed(json.loads(file.read_bytes())))
    assert {name for name, error in ask_everything(path).items() if error} == set()


TEXTS = {
    "no JSON": "{",
    "a list": "[1, 2]",
    "a number": "7",
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "not finite": '{"__metadata__": NaN}',
    "huge number": '{"a": ' + "9" * 10_000 + "}",
    "large exponent": '{"a": 1e999}',
    "key twice": '{"a": 1, "a": 2}',
    "lone surrogate": '{"\\ud800": {}, "__metadata__": {"sawlog": "\\ud800"}}',
    "empty": "{}",
    "nul": '{"\\u0000": 1}',
}


@pytest.mark.turns
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("kind", ["segment", "store.json", "schema", "writers"])
def test_odd_texts(path, kind, text, capsys):
    if kind == "segment":
        file = segment_of(path)
        file.write_bytes(Forged.of(file).bytes(text))
    else:
        file = path / kind if kind == "store.json" else sorted((path / kind).iterdir())[0]
        whole = text.rstrip().endswith("}") and kind != "writers"
        file.write_bytes(sealed(text) if whole else text.encode())
        os.utime(file, (1e9, 1e9))
    refused = ask_everything(path)
    if kind == "writers":
        assert set(refused.values()) == {None}
    elif kind != "store.json":
        assert refused["open"] is not None, refused
        assert refused["repair"] is None
        assert refused["open again"] is None


JSON_PLACES = {
    "store.json": [
        ("version",),
        ("id",),
        ("created",),
        ("config",),
        ("config", "duplicates"),
        ("config", "fixed"),
        ("meta",),
    ],
    "schema": [
        ("add",),
        ("add", 0),
        ("add", 0, "kind"),
        ("add", 0, "columns"),
        ("add", 0, "columns", 0, "name"),
        ("add", 0, "columns", 0, "dtype"),
        ("add", 0, "columns", 0, "shape"),
        ("add", 0, "ids"),
    ],
    "writers": [("published",), ("closed",), ("failed",)],
}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [(kind, keys) for kind, places in JSON_PLACES.items() for keys in places],
    ids=lambda x: x if isinstance(x, str) else ".".join(map(str, x)),
)
def test_odd_values_in_json(path, kind, keys, capsys):
    file = path / kind if kind == "store.json" else sorted((path / kind).iterdir())[0]
    original, refused = file.read_bytes(), []
    for value in ODD:
        said = json.loads(original)
        where = said
        for key in keys[:-1]:
            where = where[key]
        if value is GONE:
            if keys[-1] not in where and not isinstance(where, list):
                continue
            del where[keys[-1]]
        else:
            where[keys[-1]] = value
        file.write_bytes(json.dumps(said).encode() if kind == "writers" else sealed(said))
        refused.append(ask(path, ask_open))
        for question in by_turns(("skip", "verify", "show", "ls"), len(refused)):
            ask(path, QUESTIONS[question])
        file.write_bytes(original)
    capsys.readouterr()
    assert any(refused) or kind == "writers" or keys == ("created",)
