"""Small random models, data and Trainers, and what each example gives alone."""

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from sawlog.huggingface import LogArguments, patch_trainer
from sawlog.influence import Logs

LogTrainer = patch_trainer(Trainer)
ROWS = ("epoch-0", "logs", "whole-float32")  # where a callback stores the rows of an epoch

VOCABULARY = 23
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def gpt(dropout=0.0):
    torch.manual_seed(0)
    drop = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=8,
        n_layer=1,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
        **drop,
    )
    return GPT2LMHeadModel(config)


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=1, **SIZES))


def bert(kind=BertForMaskedLM, **more):
    torch.manual_seed(0)
    drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return kind(BertConfig(**SIZES, **drop, **more))


def classifier():
    return bert(BertForSequenceClassification, num_labels=3)


def regression():
    return bert(BertForSequenceClassification, num_labels=1)


def bart():
    torch.manual_seed(0)
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 12))
    }
    config = BartConfig(
        vocab_size=VOCABULARY,
        d_model=8,
        max_position_embeddings=16,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
        dropout=0.0,
        attention_dropout=0.0,
        **sizes,
    )
    return BartForConditionalGeneration(config)


def texts(many=7, seed=1):
    """Token sequences of different lengths, some of whose labels are masked."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(many):
        ids = random.integers(3, VOCABULARY, 3 + i % 5).tolist()
        labels = list(ids)
        labels[: i % 3] = [-100] * (i % 3)
        found.append({"input_ids": ids, "labels": labels})
    return found


def padded(items):
    """Collate sequences, padded on the right."""
    longest = max(len(item["input_ids"]) for item in items)

    def rows(key, fill):
        return torch.tensor([item[key] + [fill] * (longest - len(item[key])) for item in items])

    found = {"input_ids": rows("input_ids", 0)}
    found["attention_mask"] = torch.tensor(
        [[1] * len(i["input_ids"]) + [0] * (longest - len(i["input_ids"])) for i in items]
    )
    first = items[0]["labels"]
    if isinstance(first, list):
        found["labels"] = rows("labels", -100)
    else:
        found["labels"] = torch.tensor([item["labels"] for item in items])
    return found


def arguments(path, **options):
    given = {
        "per_device_train_batch_size": 3,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "num_train_epochs": 1,
        "learning_rate": 0.0,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(path / "output"), **{**given, **options})


def alone(model, items, loss=None, collate=padded):
    """The gradient of each parameter for each example, by autograd on a batch of one."""
    was, rows = model.training, []
    model.eval()
    loss = loss or (lambda model, batch: model(**batch).loss)
    for item in items:
        model.zero_grad()
        loss(model, collate([item])).backward()
        rows.append(
            {
                name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy().copy()
                for name, p in model.named_parameters()
                if p.requires_grad
            }
        )
    model.zero_grad()
    model.train(was)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def assert_rows(path, blocks, ids, expected, tolerance=2e-5):
    """Stored rows are the gradients of the examples, with no factor between them."""
    rows = Logs(path).gather(ids).rows()
    assert set(rows) == {block.name for block in blocks}
    seen = set()
    for block in blocks:
        for name, part in block.parts(rows[block.name]).items():
            want = expected[name]
            size = np.linalg.norm(want.reshape(len(want), -1), axis=1).max()
            np.testing.assert_allclose(
                part.reshape(want.shape), want, rtol=tolerance, atol=tolerance * size + 1e-9
            )
            seen.add(name)
    assert seen == set(expected)


def made(tmp_path, model, items, *, log=None, **options):
    """A Trainer that logs, whose options are those of the Trainer or of its arguments."""
    given = {"train_dataset": items, "data_collator": padded}
    trainer_options = {k: options.pop(k) for k in [*options] if k in (*given, "callbacks")}
    return LogTrainer(
        log_args=LogArguments("run", root=tmp_path, **(log or {})),
        model=model,
        args=arguments(tmp_path, **options),
        **{**given, **trainer_options},
    )
