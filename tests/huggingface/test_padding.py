"""Statistics of a Trainer do not depend on what batches are padded to."""

import numpy as np
import pytest
import torch
from transformers import Trainer

from sawlog.huggingface import LogArguments, LogIXArguments, patch_trainer
from tests.huggingface.small import arguments, bart, classifier, gpt, llama, padded, texts


def padded_left(items):
    longest = max(len(item["input_ids"]) for item in items)

    def rows(key, fill):
        return torch.tensor([[fill] * (longest - len(item[key])) + item[key] for item in items])

    items = [{**item, "labels": [-100, *item["labels"][1:]]} for item in items]
    ones = [{**item, "mask": [1] * len(item["input_ids"])} for item in items]
    mask = torch.tensor([[0] * (longest - len(e["mask"])) + e["mask"] for e in ones])
    return {
        "input_ids": rows("input_ids", 0),
        "labels": rows("labels", -100),
        "attention_mask": mask,
    }


def labelled():
    return [{**text, "labels": i % 3} for i, text in enumerate(texts(8))]


CASES = {
    "causal": (llama, texts(8), padded, "kfac"),
    "tied weights": (gpt, texts(8), padded, "kfac"),
    "padded on the left": (llama, texts(8), padded_left, "kfac"),
    "classification": (classifier, labelled(), padded, "kfac"),
    "an encoder and a decoder": (bart, texts(8), padded, "kfac"),
}


def measured(path, make, items, collate, given, size):
    trainer = patch_trainer(Trainer)(
        log_args=given,
        model=make(),
        args=arguments(path, per_device_train_batch_size=size),
        train_dataset=items,
        data_collator=collate,
    )
    trainer.extract_log()
    return trainer.log_run.statistics._arrays


def assert_same(one, other):
    assert set(one) == set(other)
    for name, (array, count) in one.items():
        assert other[name][1] == count, name
        np.testing.assert_allclose(
            other[name][0], array, rtol=1e-4, atol=1e-5 * np.abs(array).max() + 1e-12, err_msg=name
        )


@pytest.mark.parametrize("name", CASES)
def test_statistics_do_not_depend_on_batches(name, tmp_path):
    make, items, collate, statistic = CASES[name]
    one, several = (
        measured(
            tmp_path,
            make,
            items,
            collate,
            LogArguments(f"run-{size}", {"statistic": statistic}, root=tmp_path, check=False),
            size,
        )
        for size in (2, 4)
    )
    assert_same(one, several)


def test_arguments_of_logix(tmp_path):
    one, several = (
        measured(
            tmp_path,
            gpt,
            texts(8),
            padded,
            LogIXArguments(
                f"run-{size}",
                {"root_dir": str(tmp_path)},
                hessian="kfac",
                save="grad",
                data_id="index",
            ),
            size,
        )
        for size in (2, 4)
    )
    assert_same(one, several)
