"""Hugging Face's Trainer and a Lightning module as the training loops of clients."""

from __future__ import annotations

import logging
import re
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
from support.scripts import PAPERS, documented

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


class Doubled(transformers.Trainer):  # type: ignore[name-defined, misc]
    """A Trainer with a loss of its own."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        out = model(**inputs)
        return (2 * out.loss, out) if return_outputs else 2 * out.loss


def smoothed(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs.logits, labels, label_smoothing=0.2)


class Stops(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
    """Ends a training after three steps in all, which it counts itself."""

    steps = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.steps += 1
        control.should_training_stop = self.steps >= 3


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "class": ({}, {"trainer_class": Doubled}),
    "loss": ({}, {"compute_loss_func": smoothed}),
    "callback": ({}, {"callbacks": [Stops]}),
    "optimizer": ({}, {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"momentum": 0.9})}),
    "accumulation": ({"gradient_accumulation_steps": 2, "max_grad_norm": 1.0}, {}),
    "bfloat16": ({"bf16": True}, {}),
    "recomputation": ({"gradient_checkpointing": True}, {}),
    "warm-up": ({"lr_scheduler_type": "linear", "warmup_steps": 2, "weight_decay": 0.1}, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_users_of_trainer_pass_gives_the_trainers_own_run(name: str, tmp_path: Path) -> None:
    settings, options = OPTIONS[name]
    loop, seeds = loops.trainer(arguments(tmp_path, **settings), **options), []

    def seen(module: nn.Module, rows: loops.LoopRows, pace: Any, seed: int) -> None:
        seeds.append(seed)
        loop(module, rows, pace, seed)

    pace = md.scenarios.Pace(lr=1e-3, batch=8, epochs=2)
    result = md.run(md.FedAvg(), federation(seen, pace, clients=1), rounds=1, progress=False)
    by_pace = {"learning_rate": 1e-3, "num_train_epochs": 2, "per_device_train_batch_size": 8}
    own = arguments(
        tmp_path, **settings, **by_pace, seed=seeds[0], data_seed=seeds[0], save_strategy="no", report_to=[]
    )
    items = [{"input_ids": x, "labels": y} for x, y in zip(X, Y, strict=True)]
    options = {
        **options,
        **(
            {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"momentum": 0.9, "lr": 1e-3})}
            if name == "optimizer"
            else {}
        ),
    }
    kind = options.pop("trainer_class", transformers.Trainer)
    alone = bert()
    kind(model=alone, args=own, train_dataset=items, **options).train()
    expected = torch.cat([p.detach().reshape(-1) for p in alone.parameters()])
    assert torch.allclose(result.x, expected, atol=1e-6)
    assert not torch.allclose(result.x, torch.cat([p.detach().reshape(-1) for p in bert().parameters()]), atol=1e-5)


def test_callbacks_begin_anew_and_a_kept_optimizer_goes_on(tmp_path: Path) -> None:
    pace = md.scenarios.Pace(lr=1e-3, batch=None, epochs=4)
    stopped = loops.trainer(arguments(tmp_path), callbacks=[Stops()])
    three = md.run(md.FedAvg(), federation(stopped, pace), rounds=2, progress=False)
    expected = md.run(
        md.FedAvg(),
        federation(loops.trainer(arguments(tmp_path)), md.scenarios.Pace(lr=1e-3, batch=None, steps=3)),
        rounds=2,
        progress=False,
    )
    assert torch.allclose(three.x, expected.x, atol=1e-6)
    adam = partial(torch.optim.AdamW, weight_decay=0.0)
    mine = md.scenarios.Pace(lr=1e-3, batch=None, epochs=2, optimizer=adam, optimizer_state="kept")
    pace = md.scenarios.Pace(lr=1e-3, batch=None, epochs=2)
    saved = loops.trainer(arguments(tmp_path), optimizer_state="kept")
    result = md.run(md.FedAvg(), federation(saved, pace), rounds=3, progress=False)
    assert torch.allclose(result.x, md.run(md.FedAvg(), federation(None, mine), rounds=3, progress=False).x, atol=1e-6)
    fresh = md.run(md.FedAvg(), federation(loops.trainer(arguments(tmp_path)), pace), rounds=3, progress=False)
    assert not torch.allclose(result.x, fresh.x, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (
            {},
            {"optimizers": (None, None)},
            r"optimizers=...\): an optimizer has the parameters of one model.*trainer_class",
        ),
        ({}, {"model_init": bert}, r"model_init=...\): each client has its own; leave it out"),
        ({}, {"trainer_class": nn.Module}, "give a class after Trainer"),
        ({}, {"colator": None}, "Trainer has no such argument: got an unexpected keyword argument 'colator'"),
        ({}, {"optimizer_state": "old"}, "old"),
        ({"push_to_hub": True}, {}, "a round saves nothing; leave it out"),
    ],
)
def test_what_a_client_cannot_have_is_refused_as_the_loop_is_made(
    settings: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(md.RecipeError, match=message):
        loops.trainer(arguments(tmp_path, **settings), **options)


def test_what_the_trainer_would_ignore_is_refused(tmp_path: Path) -> None:
    loop = loops.trainer(arguments(tmp_path))
    for settings, argument in (({"clip": 1.0}, "max_grad_norm"), ({"momentum": 0.9}, "optim_args")):
        pace = md.scenarios.Pace(lr=1e-3, **settings)
        with pytest.raises(
            md.RecipeError, match=rf"the Trainer's arguments decide that.*TrainingArguments\({argument}"
        ):
            md.run(md.FedAvg(), federation(loop, pace), rounds=1, progress=False)
    other = loops.trainer(arguments(tmp_path), optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.5}))
    with pytest.raises(md.RecipeError, match=r"learning_rate is 0.5, and the pace says 0.001"):
        md.run(md.FedAvg(), federation(other, md.scenarios.Pace(lr=1e-3)), rounds=1, progress=False)


def test_adapters_of_a_language_model_by_its_own_loss(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    labels = X.clone()
    labels[:, 0] = -100  # Trainer divides by all other labels, also by a first one, which no place predicts
    rows = [(X[k::2], labels[k::2]) for k in range(2)]
    pace = md.scenarios.Pace(lr=0.1, batch=None, steps=3)
    results = []
    for train in (None, loops.trainer(arguments(tmp_path, optim="sgd"))):
        torch.manual_seed(0)
        config = {"vocab_size": 50, "n_positions": 8, "n_embd": 16, "n_layer": 1, "n_head": 2}
        none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        base = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config, **none))
        model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
        net = md.problems.Network(model, loss=md.problems.causal_lm, start="module", base="gpt", train=train)
        results.append(md.run(md.FedAvg(), md.Federation(net, clients=rows, pace=pace), rounds=2, progress=False))
    assert len(results[0].x) == 2 * 16 + 2 * 48
    assert torch.allclose(results[0].x, results[1].x, atol=1e-6)
    assert results[1].history[-1]["loss"] < results[1].history[0]["loss"]


def test_the_language_tutorials_job_by_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (PAPERS.parent / "docs" / "tutorials" / "language.md").read_text(encoding="utf-8")
    first, second, *_, last = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    space: dict[str, Any] = {"__name__": "page"}
    for block in (first, second.replace("rounds=15", "rounds=1"), last):
        capsys.readouterr()
        exec(block, space)
    assert capsys.readouterr().out == page.rpartition("```text\n")[2].partition("```")[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wards"]


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
