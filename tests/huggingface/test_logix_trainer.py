"""Programs written for LogIX's patched Trainer."""

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer, default_data_collator

from sawlog.huggingface import LogIXArguments, patch_trainer
from sawlog.influence import Logs
from tests.huggingface.small import VOCABULARY, alone, arguments, assert_rows, gpt


def tokenizer():
    names = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{i}" for i in range(4, VOCABULARY))]
    words = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, **special)


def blocks(many, seed):
    random = np.random.default_rng(seed)
    ids = random.integers(4, VOCABULARY, (many, 6)).tolist()
    ids[-1] = ids[0]  # a text that occurs twice
    return [{"input_ids": each, "attention_mask": [1] * 6, "labels": each} for each in ids]


def made(tmp_path, data, **options):
    (tmp_path / "config.yaml").write_text(f"root_dir: {tmp_path}\nlora:\n  rank: 4\n")
    args = LogIXArguments(
        project="wiki", config=str(tmp_path / "config.yaml"), save="grad", **options
    )
    return patch_trainer(Trainer)(
        model=gpt(),
        tokenizer=tokenizer(),
        train_dataset=data,
        data_collator=default_data_collator,
        args=arguments(tmp_path),
        logix_args=args,
    )


def test_rows_and_scores(tmp_path):
    data = blocks(7, 0)
    trainer = made(tmp_path, data, hessian="raw")
    trainer.extract_log()
    ids = tokenizer().batch_decode([each["input_ids"] for each in data])
    ids[-1] += "#2"
    run = trainer.logix
    expected = alone(gpt(), data, collate=default_data_collator)
    watched = [block for block in run._blocks() if "weight" in block.name]
    kept = {name: expected[name] for block in watched for name in block.parameters}
    assert "transformer.h.0.ln_1.weight" not in kept  # as LogIX: Linear and its relatives
    assert_rows(run.store_path, watched, ids, kept)
    queries = made(tmp_path, blocks(3, 1)[:2], hessian="raw", initialize_from_log=True)
    scores = queries.influence()
    assert isinstance(scores["influence"], torch.Tensor)
    assert scores["influence"].shape == (2, 7)
    assert scores.about["curvature"] == "fisher"
    assert sorted(scores["tgt_ids"]) == sorted(ids)
    assert queries.self_influence().values.shape == (2,)


def test_projected_gradients(tmp_path):
    trainer = made(tmp_path, blocks(7, 0), lora=True, hessian="ekfac", data_id="index")
    assert trainer.extract_log().passes == ("K-FAC", "EK-FAC and rows")
    logs = Logs(trainer.logix.store_path)
    assert sorted(logs.ids) == list(range(7))
    assert {max(shape) for _, shape in logs.shapes().values()} == {4}
    groups = made(
        tmp_path, blocks(2, 1), initialize_from_log=True, influence_groups=["attn", "mlp"]
    )
    assert set(groups.influence()["influence"]) == {"total", "attn", "mlp"}
