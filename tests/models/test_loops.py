"""Hugging Face's Trainer and a Lightning module as the training loops of clients."""

from __future__ import annotations

import logging
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import medley as md
from medley import loops
from support.scripts import documented

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

X = torch.randint(0, 50, (48, 8), generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 25).long()


def bert(dropout: float = 0.0) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def arguments(folder: Path, **settings: Any) -> Any:
    kind = {"optim": "adamw_torch", "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "use_cpu": True}
    return transformers.TrainingArguments(output_dir=str(folder), **{**kind, **settings})


def federation(train: Any, pace: md.scenarios.Pace, clients: int = 2, dropout: float = 0.0) -> md.Federation:
    problem = md.problems.Network(bert(dropout), start="module", train=train)
    rows = [(X[k::clients], Y[k::clients]) for k in range(clients)]
    return md.Federation(problem, clients=rows, classes=2, pace=pace)


def test_the_trainer_computes_what_the_pace_does_where_both_are_defined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = md.scenarios.Pace(lr=1e-3, batch=None, epochs=3, optimizer=partial(torch.optim.AdamW, weight_decay=0.0))
    expected = md.run(md.FedAvg(), federation(None, mine), rounds=2, progress=False)
    pace = md.scenarios.Pace(lr=1e-3, batch=None, epochs=3)
    result = md.run(md.FedAvg(), federation(loops.trainer(arguments(tmp_path)), pace), rounds=2, progress=False)
    assert torch.allclose(result.x, expected.x, atol=1e-6)
    assert capsys.readouterr().out == ""
    assert [*tmp_path.iterdir()] == []


def test_one_client_equals_the_trainers_own_run(tmp_path: Path) -> None:
    args = arguments(tmp_path, optim="adafactor", lr_scheduler_type="cosine", max_grad_norm=0.5)
    seeds = []

    def loop(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        seeds.append(seed)
        loops.trainer(args)(module, rows, pace, seed)

    pace = md.scenarios.Pace(lr=1e-3, batch=8, epochs=2)
    result = md.run(md.FedAvg(), federation(loop, pace, clients=1, dropout=0.1), rounds=1, progress=False)
    own = arguments(
        tmp_path,
        optim="adafactor",
        lr_scheduler_type="cosine",
        max_grad_norm=0.5,
        seed=seeds[0],
        data_seed=seeds[0],
        learning_rate=1e-3,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        save_strategy="no",
        report_to=[],
    )
    alone = bert(0.1)
    items = [{"input_ids": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.Trainer(model=alone, args=own, train_dataset=items).train()
    expected = torch.cat([p.detach().reshape(-1) for p in alone.parameters()])
    assert torch.allclose(result.x, expected, atol=1e-6)
    assert not torch.allclose(result.x, torch.cat([p.detach().reshape(-1) for p in bert().parameters()]), atol=1e-4)


def test_an_argument_that_the_pace_has_is_refused_unless_they_agree(tmp_path: Path) -> None:
    loop = loops.trainer(arguments(tmp_path, learning_rate=1e-3, per_device_train_batch_size=4))
    with pytest.raises(md.RecipeError, match=r"learning_rate is 0.001, and the pace says 0.1; .*Pace\(lr=0.001\)"):
        md.run(md.FedAvg(), federation(loop, md.scenarios.Pace(batch=4)), rounds=1, progress=False)
    md.run(md.FedAvg(), federation(loop, md.scenarios.Pace(lr=1e-3, batch=4, steps=2)), rounds=1, progress=False)
    with pytest.raises(md.RecipeError, match=r"give a transformers.TrainingArguments"):
        loops.trainer({"learning_rate": 1e-3})
    with pytest.raises(md.RecipeError, match=r"loops.trainer\(train_dataset=...\): each client has its own"):
        loops.trainer(arguments(tmp_path), train_dataset=[])


def test_lightning_on_the_page_equals_lightnings_own_run() -> None:
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    script = documented("loops.md", "Lightning").replace("IID(4)", "IID(1)").replace("rounds=5", "rounds=1")
    script = script.replace("pace, seed):\n", "pace, seed):\n    seeds.append(seed)\n")
    seeds: list[int] = []
    page: dict[str, Any] = {"seeds": seeds, "__name__": "page"}
    exec(script, page)
    model = page["Classifier"]()
    model.load_state_dict(page["net"].module.state_dict())
    lightning.seed_everything(seeds[0], verbose=False)
    data = page["fed"].data
    loader = DataLoader(TensorDataset(data.X, data.y), batch_size=32, shuffle=True)
    lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(model, loader)
    result = page["result"]
    assert torch.allclose(result.x, torch.cat([p.detach().reshape(-1) for p in model.parameters()]), atol=1e-6)
    assert result.summary["accuracy"] > 0.5
