"""Models of transformers with adapters of peft, made by their configurations: as they are, without a wrapper."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from support.scripts import documented

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")

V, T = 50, 8


def bert(dtype: torch.dtype = torch.float32) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=V,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=T,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return adapted(lambda: transformers.BertForSequenceClassification(config), "SEQ_CLS", ["query", "value"], dtype)


def llama(dtype: torch.dtype = torch.float32) -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=4 * T,
    )
    return adapted(lambda: transformers.LlamaForCausalLM(config), "CAUSAL_LM", ["q_proj", "v_proj"], dtype)


def adapted(make: Any, task: str, layers: list[str], dtype: torch.dtype) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        config = peft.LoraConfig(task_type=task, r=2, lora_alpha=4, target_modules=layers)
        model: nn.Module = peft.get_peft_model(make().to(dtype), config)
    return model


def rows(seed: int, classes: bool, n: int = 6) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(seed)
    ids, mask = torch.randint(3, V, (n, T), generator=g), torch.ones(n, T, dtype=torch.int64)
    mask[::2, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}, ids[:, 0] % 2 if classes else ids.masked_fill(mask == 0, -100)


def federation(model: nn.Module, classes: bool, **options: Any) -> md.Federation:
    loss = "cross_entropy" if classes else md.problems.causal_lm
    return md.Federation(
        md.problems.Network(model, loss=loss, start="module"),
        clients=[rows(i, classes) for i in range(3)],
        test=rows(9, classes),
        pace=md.scenarios.Pace(lr=0.1, epochs=2, batch=None),
        weights="uniform",
        **options,
    )


def by_hand(model: nn.Module, classes: bool, rounds: int) -> Tensor:
    """FedAvg's x after so many rounds of two full steps a client, in plain PyTorch."""
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    for _ in range(rounds):
        start, total = [p.detach().clone() for p in params], [torch.zeros_like(p) for p in params]
        for i in range(3):
            X, y = rows(i, classes)
            for _ in range(2):
                out = model(**X).logits.float()
                loss = nn.functional.cross_entropy(out, y) if classes else md.problems.causal_lm(out, y).mean()
                with torch.no_grad():
                    for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                        p -= 0.1 * g
            with torch.no_grad():
                for p, s, t in zip(params, start, total, strict=True):
                    t += (p - s) / 3
                    p.copy_(s)
        with torch.no_grad():
            for p, t in zip(params, total, strict=True):
                p += t
    return torch.cat([p.detach().reshape(-1) for p in params])


@pytest.mark.parametrize(("make", "classes"), [(bert, True), (llama, False)])
def test_adapters_are_those_of_a_loop_by_hand(make: Any, classes: bool) -> None:
    result = md.run(md.FedAvg(), federation(make(), classes), 2, progress=False)
    assert float((result.x - by_hand(make(), classes, 2)).abs().max()) < 1e-6
    assert len(result.x) == sum(p.numel() for p in make().parameters() if p.requires_grad)
    assert result.buffers is None


def test_a_base_of_16_bits_stays_and_generates() -> None:
    result = md.run(md.FedAvg(), federation(llama(torch.bfloat16), False), 1, progress=False)
    assert result.model is not None
    kinds = {p.requires_grad: p.dtype for p in result.model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    made = result.model.generate(input_ids=torch.tensor([[5, 6]]), max_new_tokens=3, do_sample=False)
    assert made.shape == (1, 5)


@pytest.mark.parametrize(("make", "classes"), [(bert, True), (llama, False)])
def test_private_and_secure(make: Any, classes: bool) -> None:
    fed, model = federation(make(), classes), make()
    plain = md.run(md.FedAvg(), fed, 1, progress=False)
    secure = md.run(md.FedAvg(), fed, 1, progress=False, secure=md.SecureSum())
    assert float((plain.x - secure.x).abs().max()) < 1e-4
    for unit in ("client", "row"):
        method = md.privacy.Private(md.FedAvg(), clip=1e6, noise=0.0, unit=unit)
        assert float((md.run(method, fed, 1, progress=False).x - plain.x).abs().max()) < 1e-5
    del model


def test_the_documented_block_of_private_adapters_runs_and_the_named_settings_switch_dropout_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=V, attention_dropout=0.5, **shape)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path)
    sites = [(X["input_ids"], X["attention_mask"], y) for X, y in (rows(i, False, 20) for i in range(2))]
    said: dict[str, Any] = {"sites": sites}
    exec(documented("models.md", "Adapters with differential privacy"), said)
    assert 0 < said["result"].summary["epsilon"] <= 8
    assert said["base"].config.attention_dropout == 0
    bert, gpt = ("hidden_dropout_prob", "attention_probs_dropout_prob"), ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    for kind, names in ((transformers.BertConfig, bert), (transformers.GPT2Config, gpt)):
        assert all(getattr(kind(), name) > 0 for name in names)  # on unless they are set to 0


def test_peft_reads_what_a_result_saves_and_a_folder_holds_the_adapter_alone(tmp_path: Path) -> None:
    fed = federation(llama(), False)
    result = md.run(md.FedAvg(), fed, 1, progress=False, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    with pytest.raises(md.RecipeError, match="its base LlamaForCausalLM"):
        md.Result.load(tmp_path / "run").predict(rows(9, False)[0])
    wanted = result.outputs(rows(9, False)[0])
    assert torch.equal(md.Result.load(tmp_path / "run", llama()).outputs(rows(9, False)[0]), wanted)
    assert result.model is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result.model.save_pretrained(tmp_path / "adapter")
        base = llama().unload()
        again = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    assert torch.allclose(again(**rows(9, False)[0]).logits, wanted, atol=1e-6)


def exact(make: Any, rounds: int) -> nn.Module:
    """FedExLoRA by hand: peft merges each client's adapter into its layers, and the mean of those is W + sBA."""
    model = make()
    layers = [m for m in model.modules() if len(getattr(m, "lora_A", ()))]
    params = [p for p in model.parameters() if p.requires_grad]
    for _ in range(rounds):
        start, ends, merged = [p.detach().clone() for p in params], [], []
        for i in range(3):
            X, y = rows(i, False)
            for p, v in zip(params, start, strict=True):
                p.data = v.clone()
            for _ in range(2):
                loss = md.problems.causal_lm(model(**X).logits, y).mean()
                for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                    p.data = p.data - 0.1 * g
            ends.append([p.detach().clone() for p in params])
            merged.append([m.base_layer.weight.detach() + m.get_delta_weight("default").detach() for m in layers])
        for p, own in zip(params, zip(*ends, strict=True), strict=True):
            p.data = torch.stack(own).mean(0)
        for m, own in zip(layers, zip(*merged, strict=True), strict=True):
            m.base_layer.weight.data = torch.stack(own).mean(0) - m.get_delta_weight("default").detach()
    return model


def test_exact_sums_of_pefts_adapters_and_a_merged_model_that_transformers_reads(tmp_path: Path) -> None:
    model = llama()
    for name, p in model.named_parameters():
        p.requires_grad_("lora_" in name or name.endswith("base_layer.weight"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data.normal_(generator=torch.Generator().manual_seed(len(name)))

    def frozen() -> nn.Module:
        other = llama()
        other.load_state_dict(model.state_dict())
        return other

    result = md.run(md.FedExLoRA(), federation(model, False), 3, progress=False)
    wanted = exact(frozen, 3)
    assert result.model is not None
    for (name, p), q in zip(result.model.named_parameters(), wanted.parameters(), strict=True):
        assert float((p - q).detach().abs().max()) < 1e-6, name
    d, a = len(result.x), sum(p.numel() for p in frozen().parameters() if p.requires_grad)
    assert {e.down for e in result.ledger if e.round == 1} == {4 * d}
    residual = (3 - 1) * 2 * 4 * (16 + 16)  # rank (k - 1) r, of four layers
    assert {e.down for e in result.ledger if e.round > 1} == {4 * (a + residual)}
    said = result.outputs(rows(9, False)[0])
    result.model.merge_and_unload().save_pretrained(tmp_path / "merged")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert torch.allclose(again(**rows(9, False)[0]).logits, said, atol=1e-5)


def test_a_tokenised_data_set_of_hugging_face_is_a_client(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    X, y = rows(0, False)
    table = datasets.Dataset.from_dict({k: v.tolist() for k, v in {**X, "labels": y}.items()})
    pace, problem = (
        md.scenarios.Pace(lr=0.1, batch=None),
        lambda: md.problems.Network(llama(), loss=md.problems.causal_lm, start="module"),
    )
    found = [
        md.run(md.FedAvg(), md.Federation(problem(), clients=[c, c], pace=pace), 1, progress=False).x
        for c in ((X, y), table.with_format("torch"))
    ]
    assert float((found[0] - found[1]).abs().max()) < 1e-6


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def trained_on_digits(module: nn.Module) -> md.Result:
    fed = md.Federation(
        md.problems.Network(module, start="module"),
        data=md.datasets.digits(),
        partition=md.partitions.Dirichlet(4, 0.3),
        pace=md.scenarios.Pace(lr=0.1, batch=20),
    )
    return md.run(md.FedAvg(), fed, 3, progress=False)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_model_that_accelerate_prepared_keeps_its_precision(precision: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state()
    try:
        prepared = accelerate.Accelerator(cpu=True, mixed_precision=precision).prepare(small())
        result, plain = trained_on_digits(prepared), trained_on_digits(small())
    finally:
        accelerate.state.AcceleratorState._reset_state()
    gap = float((result.x - plain.x).norm() / plain.x.norm())
    assert gap < 1e-6 if precision == "no" else 1e-4 < gap < 0.1


def test_a_module_of_lightning_comes_back_to_its_trainer() -> None:
    lightning = pytest.importorskip("lightning")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, X: Tensor) -> Tensor:
            out: Tensor = self.net(X)
            return out

        def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    result = trained_on_digits(Lit())
    assert torch.allclose(result.x, trained_on_digits(small()).x, atol=1e-6)
    assert isinstance(result.model, Lit)
    rows = torch.utils.data.TensorDataset(torch.randn(8, 64), torch.arange(8))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    lightning.Trainer(max_epochs=1, **options).fit(result.model, torch.utils.data.DataLoader(rows, batch_size=4))
    assert trained_on_digits(result.model).history[-1]["loss"] < 2.3
