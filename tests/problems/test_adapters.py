"""Networks with a frozen base: its dtype, its memory, its place on disk, and buffers that stand still."""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley as md
from medley.problems import Network, causal_lm
from medley.problems.network import NetworkProblem
from medley.rows.fields import Fields
from medley.storage.identity import fingerprint

V, T, H, R = 11, 6, 8, 2


class Out(OrderedDict):  # type: ignore[type-arg]
    """Outputs by name and by attribute, as those of Hugging Face."""

    @property
    def logits(self) -> Tensor:
        return self["logits"]


class Lora(nn.Module):
    """A frozen layer and a product that is 0 at first, in the dtype of the product."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(H, R, bias=False)
        self.up = nn.Linear(R, H, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x.to(self.down.weight.dtype))).to(x.dtype)


class Language(nn.Module):
    """A causal language model with the traits of peft's: a frozen base, still buffers, inputs by name, an object out.

    Its control flow depends on the mask's numbers, so that vmap does not take it.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(V, H), Lora(nn.Linear(H, H))
        self.head = nn.Linear(H, V, bias=False)
        self.register_buffer("position_ids", torch.arange(T)[None], persistent=False)
        self.register_buffer("inv_freq", torch.linspace(1, 2, H), persistent=False)
        self.register_buffer("scale", torch.ones(()))
        for name, p in self.named_parameters():
            if ".down" not in name and ".up" not in name:
                p.requires_grad_(False)
                p.data = p.data.to(dtype)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Out:
        x = self.embed(input_ids) * self.scale.to(self.embed.weight.dtype)
        if attention_mask is not None and not attention_mask.all():
            x = x * attention_mask[..., None].to(x.dtype)
        x = torch.tanh(self.mix(x.cumsum(1)) + torch.sin(self.position_ids[..., None] * self.inv_freq).to(x.dtype))
        return Out(logits=self.head(x), cache=None)


def language(dtype: torch.dtype = torch.float32) -> Language:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Language(dtype)


def rows(seed: int, n: int = 8) -> tuple[dict[str, Tensor], Tensor]:
    g = torch.Generator().manual_seed(seed)
    ids, mask = torch.randint(V, (n, T), generator=g), torch.ones(n, T, dtype=torch.int64)
    mask[::2, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}, ids.masked_fill(mask == 0, -100)


CLIENTS = [rows(i) for i in range(3)]


def federation(module: nn.Module, **options: Any) -> md.Federation:
    pace = md.scenarios.Pace(lr=0.5, epochs=1, batch=None)
    problem = Network(module, loss=causal_lm, start="module", **options)
    return md.Federation(problem, clients=CLIENTS, test=rows(9), pace=pace, weights="uniform")


def by_hand(module: nn.Module, rounds: int) -> Tensor:
    """FedAvg's x after so many rounds of one full step a client, in plain PyTorch."""
    params = [p for p in module.parameters() if p.requires_grad]
    for _ in range(rounds):
        total = [torch.zeros_like(p) for p in params]
        for X, y in CLIENTS:
            logits = module(**X).logits.float()
            token = nn.functional.cross_entropy(logits[:, :-1].movedim(2, 1), y[:, 1:], reduction="none")
            there = y[:, 1:] != -100
            loss = ((token * there).sum(1) / there.sum(1)).mean()
            for t, g in zip(total, torch.autograd.grad(loss, params), strict=True):
                t += g / len(CLIENTS)
        with torch.no_grad():
            for p, t in zip(params, total, strict=True):
                p -= 0.5 * t
    return torch.cat([p.detach().reshape(-1) for p in params])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_are_those_of_a_loop_by_hand(dtype: torch.dtype) -> None:
    result = md.run(md.FedAvg(), federation(language(dtype)), 3, progress=False)
    wanted = by_hand(language(dtype), 3)
    assert float((result.x - wanted).abs().max()) < (1e-6 if dtype is torch.float32 else 1e-3)
    assert result.buffers is None
    assert result.history[-1]["test_loss"] < result.history[0]["test_loss"]
    both = md.run(md.FedAvg(), federation(language(dtype)), 3, progress=False, transport=md.transports.Processes(2))
    assert both.digest == result.digest


def test_the_base_keeps_its_dtype_and_is_held_once() -> None:
    module = language(torch.bfloat16)
    before = {name: p.clone() for name, p in module.named_parameters()}
    result = md.run(md.FedAvg(), federation(module), 1, progress=False)
    assert result.model is not None
    for (name, p), q in zip(module.named_parameters(), result.model.parameters(), strict=True):
        assert torch.equal(p, before[name])  # the user's module is not trained
        assert q.dtype == p.dtype
        assert (q.data_ptr() == p.data_ptr()) != p.requires_grad
    assert result.model(**rows(9)[0]).logits.dtype == torch.bfloat16
    assert result.outputs(rows(9)[0]).shape == (8, T, V)


class Int8(nn.Module):
    """A frozen layer in int8 with a scale for each output, and an adapter over it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("codes", (layer.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.a, self.b = nn.Parameter(torch.randn(2, layer.in_features)), nn.Parameter(torch.zeros(len(scale), 2))

    def forward(self, X: Tensor) -> Tensor:
        return X @ (self.codes.to(X.dtype) * self.scale).T + X @ self.a.T @ self.b.T


def test_a_base_in_int8_stays_and_its_adapter_is_that_of_a_loop_by_hand(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Int8(nn.Linear(64, 32)), nn.ReLU(), Int8(nn.Linear(32, 3)))
    X, y = torch.randn(12, 64), torch.arange(12) % 3
    fed = md.Federation(
        Network(module, start="module"), clients=[(X, y)] * 2, pace=md.scenarios.Pace(lr=0.5, epochs=1, batch=None)
    )
    result = md.run(md.FedAvg(), fed, 3, progress=False, checkpoint=tmp_path)
    params = [*module.parameters()]
    for _ in range(3):
        slopes = torch.autograd.grad(nn.functional.cross_entropy(module(X), y), params)
        with torch.no_grad():
            for p, slope in zip(params, slopes, strict=True):
                p -= 0.5 * slope
    assert torch.allclose(result.x, torch.cat([p.detach().reshape(-1) for p in params]), atol=1e-6)
    assert result.model is not None
    assert result.model[0].codes.dtype == torch.int8  # type: ignore[index, union-attr]
    assert sum(e.up for e in result.ledger) == 3 * 2 * 4 * len(result.x)
    assert torch.equal(md.Result.load(tmp_path, module).outputs(X), result.outputs(X))


def test_a_trained_part_of_16_bits_is_computed_as_before_in_the_runs_dtype() -> None:
    module = nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)).bfloat16()
    clients = [(torch.randn(6, 4), torch.arange(6) % 2)] * 2
    result = md.run(md.FedAvg(), md.Federation(Network(module), clients=clients), 1, progress=False)
    assert result.model is not None
    assert {p.dtype for p in result.model.parameters()} == {torch.float32}
    assert module[0].weight.dtype == torch.bfloat16


def test_a_folder_holds_the_adapter_and_names_its_base(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fed = federation(language(torch.bfloat16), base="language-11")
    run = md.run(md.FedAvg(), fed, 2, progress=False, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert (tmp_path / "run" / "x.safetensors").stat().st_size < 4 * len(run.x) + 200
    with caplog.at_level(logging.WARNING, "medley"):
        there = md.Result.load(tmp_path / "run")
    assert "not its base language-11: pass the module" in caplog.text
    with pytest.raises(md.RecipeError, match=r"not its base language-11.*Result\.load\(folder, module="):
        there.predict(rows(9)[0])
    module = language(torch.bfloat16)
    back = md.Result.load(tmp_path / "run", module)
    assert torch.equal(back.outputs(rows(9)[0]), run.outputs(rows(9)[0]))
    assert back.model is not None
    assert back.model.head.weight.data_ptr() == module.head.weight.data_ptr()
    with torch.no_grad():
        module.head.weight[0, 0] += 1
    with pytest.raises(md.WireError, match=r"base language-11 with the digest \w{12}, and this module's has"):
        md.Result.load(tmp_path / "run", module)


class Normed(nn.Sequential):
    """A base with batch normalisation that stays in evaluation mode, so that its statistics stand still."""

    def __init__(self, middle: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(OrderedDict(base=nn.Linear(4, 4), norm=nn.BatchNorm1d(4), head=nn.Linear(4, 2)))
        for p in self.parameters():
            p.data.fill_(0.5)
        self.base.requires_grad_(False)
        self.norm.requires_grad_(False)
        nn.init.constant_(self.norm.running_mean, middle)
        self.to(dtype)

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.norm.eval()
        return self


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_named_base_has_its_still_buffers_and_the_dtype_of_the_run(tmp_path: Path, dtype: torch.dtype) -> None:
    clients = [(torch.randn(6, 4), torch.arange(6) % 2)] * 2
    fed = md.Federation(Network(Normed(0.0, dtype), start="module", base="normed"), clients=clients)
    run = md.run(md.FedAvg(), fed, 1, progress=False, checkpoint=tmp_path / "run")
    back = md.Result.load(tmp_path / "run", Normed(0.0, dtype))
    assert torch.equal(back.outputs(torch.ones(2, 4)), run.outputs(torch.ones(2, 4)))
    with pytest.raises(md.WireError, match="base normed with the digest"):
        md.Result.load(tmp_path / "run", Normed(1.0, dtype))


def test_without_a_name_the_folder_holds_the_base_and_its_still_buffers(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 4).bfloat16().requires_grad_(False), To(), nn.Linear(4, 2))
    module.register_buffer("unused", torch.arange(3.0), persistent=False)
    clients = [(torch.randn(6, 4).bfloat16(), torch.arange(6) % 2)] * 2
    fed = md.Federation(Network(module, start="module"), clients=clients)
    md.run(md.FedAvg(), fed, 1, progress=False, checkpoint=tmp_path / "run")
    back = md.Result.load(tmp_path / "run").model
    assert back is not None
    assert torch.equal(back[0].weight, module[0].weight)
    assert back.get_buffer("unused").tolist() == [0, 1, 2]
    other = nn.Sequential(nn.Linear(4, 4).bfloat16().requires_grad_(False), To(), nn.Linear(4, 2))
    given = other[0].weight.clone()
    found = md.Result.load(tmp_path / "run", other).model
    assert found is not None
    assert torch.equal(found[0].weight, module[0].weight)
    assert torch.equal(other[0].weight, given)


class To(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


class Counting(nn.Module):
    """A buffer that each pass in training changes, and one that none changes."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("count", torch.zeros(()))
        self.head.register_buffer("fixed", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
        return self.head(x) * self.head.fixed


def test_buffers_that_training_changes_travel_and_others_do_not() -> None:
    clients = [(torch.randn(6, 4), torch.arange(6) % 2)] * 2
    pace = md.scenarios.Pace(lr=0.1, steps=3, batch=None)
    fed = md.Federation(Network(Counting()), clients=clients, pace=pace)
    result = md.run(md.FedAvg(), fed, 2, progress=False)
    assert result.buffers is not None
    assert result.buffers[0].tolist() == [6.0]
    assert result.model is not None
    assert float(result.model.count) == 6.0
    with pytest.raises(md.Unsupported, match="this network has buffers"):
        md.run(md.FedAvg(), fed, 1, progress=False, secure=md.SecureSum())


@pytest.mark.parametrize("fields", [False, True])
def test_one_row_shows_the_same_still_buffers_as_two(fields: bool) -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)
            self.register_buffer("places", torch.arange(4.0))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(x + self.get_buffer("places")))

    X = torch.randn(2, 4)
    given = Fields([X], ["x"]) if fields else X
    for n in (1, 2):
        problem = Network(Places()).ready(given[:n], torch.arange(n), 2, None, "cpu")
        assert isinstance(problem, NetworkProblem)
        assert problem.still == {"places"}


class Late(nn.Module):
    """A layer with a buffer that moves with more rows than two only, so in no pass that tries the module."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        self.register_buffer("middle", torch.zeros(1 << 17 if how == "large" else 4))

    def forward(self, X: Tensor) -> Tensor:
        if self.training and self.how == "shown":
            self.middle.add_(0)
        if self.training and self.how != "still" and len(X) > 2:
            middle = X.detach().mean(0)
            if self.how == "set":
                self.middle = middle
            else:
                self.middle[:4].lerp_(middle, 0.1)
        return self.layer(X)


def twelve_rows(module: nn.Module) -> md.Federation:
    """Three clients of four rows each."""
    X, y = torch.arange(48.0).reshape(12, 4) / 48, torch.arange(12) % 2
    clients = [(X[k : k + 4], y[k : k + 4]) for k in (0, 4, 8)]
    return md.Federation(Network(module), clients=clients, pace=md.scenarios.Pace(lr=0.1, steps=2, batch=None))


@pytest.mark.parametrize("method", [md.FedAvg(), md.FedPer()], ids=lambda m: m.name)
@pytest.mark.parametrize("how", ["small", "large", "set"])
def test_a_buffer_that_begins_to_move_after_the_trial_is_refused(how: str, method: md.Algorithm[Any, Any]) -> None:
    with pytest.raises(
        md.RecipeError, match=r"the buffer middle did not change in a pass .* write to it in every pass"
    ):
        md.run(method, twelve_rows(Late(how)), 1, progress=False)


def test_a_write_without_effect_makes_a_buffer_travel() -> None:
    fed = twelve_rows(Late("shown"))
    one, two = (md.run(md.FedAvg(), fed, 2, progress=False, transport=t) for t in (None, md.transports.Processes(2)))
    assert one.buffers is not None
    assert two.buffers is not None
    assert one.digest == two.digest
    assert torch.equal(one.buffers[0], two.buffers[0])
    assert one.buffers[0].abs().min() > 0


def test_other_numbers_of_a_still_buffer_are_refused_as_init() -> None:
    module = Late("still")
    fed = md.Federation(Network(module), clients=[(torch.ones(2, 4), torch.arange(2))] * 2)
    md.run(md.FedAvg(), fed, 1, progress=False, init=module.state_dict())
    with pytest.raises(md.RecipeError, match="middle is not trained, and the module has other numbers there"):
        md.run(md.FedAvg(), fed, 1, progress=False, init=module.state_dict() | {"middle": torch.ones(4)})


def test_still_buffers_block_neither_secure_sums_nor_privacy() -> None:
    fed = federation(language())
    plain = md.run(md.FedAvg(), fed, 2, progress=False)
    secure = md.run(md.FedAvg(), fed, 2, progress=False, secure=md.SecureSum())
    assert float((plain.x - secure.x).abs().max()) < 1e-4
    for unit in ("client", "row"):
        method = md.privacy.Private(md.FedAvg(), clip=1e6, noise=0.0, unit=unit)
        assert float((md.run(method, fed, 2, progress=False).x - plain.x).abs().max()) < 1e-5


def test_row_gradients_are_those_of_each_row_where_vmap_does_not_take_the_module() -> None:
    (X, y), module = rows(1), language()
    given = Fields(list(X.values()), list(X))
    p = Network(module, loss=causal_lm, start="module").ready(given, y, None, torch.float32, "cpu")
    assert isinstance(p, NetworkProblem)
    params = [q for q in module.parameters() if q.requires_grad]
    bound, total = 0.05, torch.zeros(p.d)
    for j in range(len(y)):
        out = module(**{k: v[j : j + 1] for k, v in X.items()}).logits
        g = torch.cat([t.reshape(-1) for t in torch.autograd.grad(causal_lm(out, y[j : j + 1]).mean(), params)])
        total += g * min(1.0, bound / float(g.norm()))
    found, _ = p.bind(given, y).clipped(p.flat, None, bound)
    assert float((found - total).abs().max()) < 1e-6
    assert not p.maps
    ids = Network(module, loss=causal_lm, start="module").ready(X["input_ids"], y, None, torch.float32, "cpu")
    assert isinstance(ids, NetworkProblem)
    ids.bind(X["input_ids"], y).clipped(ids.flat, None, bound)
    assert ids.maps  # without a mask nothing depends on numbers


def test_causal_lm_compares_each_place_with_the_next_token_and_leaves_masked_ones_out() -> None:
    z = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[0, 1, 2, 3], [4, -100, 2, -100]])
    logs = z.log_softmax(2)
    first = -(logs[0, 0, 1] + logs[0, 1, 2] + logs[0, 2, 3]) / 3
    assert torch.allclose(causal_lm(z, y), torch.stack([first, -logs[1, 1, 2]]))
    assert causal_lm(z, torch.full_like(y, -100)).tolist() == [0.0, 0.0]


def test_what_is_trained_of_a_peft_model_needs_a_start() -> None:
    module = language()
    module.peft_config = {"default": SimpleNamespace(base_model_name_or_path="some/base")}
    with pytest.raises(md.RecipeError, match="start='module' keeps them"):
        Network(module, loss=causal_lm)


def test_drawn_runs_on_different_bases_have_different_identities() -> None:
    one, other = (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)) for _ in range(2))
    assert fingerprint(Network(one)) != fingerprint(Network(other))
