"""What examples look like: their text, image or table row by id, stored beside a run.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> describe(folder, {7: {"text": "seven", "label": 1}, 8: "eight"})
2
>>> data = load_examples(folder)
>>> data.get([8, 7, 9])
{8: Example(text='eight'), 7: Example(text='seven', fields={'label': 1})}

``run.describe(dataset)`` does the same for a run. Tables, pages and commands then show the data of
an example beside its id. Nothing here needs a framework.
"""

from __future__ import annotations

from sawlog.example_data._example import Example as Example
from sawlog.example_data._files import rows_of_file as rows_of_file
from sawlog.example_data._sources import examples_of as examples_of
from sawlog.example_data._table import ExampleData as ExampleData
from sawlog.example_data._table import check_described as check_described
from sawlog.example_data._table import describe as describe
from sawlog.example_data._table import load_examples as load_examples

__all__ = [
    "Example",
    "ExampleData",
    "describe",
    "examples_of",
    "load_examples",
]
