"""LoRA adapters of a language model of a billion parameters on a GPU: a round's seconds and memory beside a plain loop.

    python benchmarks/adapters.py                        Llama by its configuration, in bfloat16, on "cuda"
    python benchmarks/adapters.py --small --device cpu   the same way through, with a tiny model

Needs the extra ``adapters`` and no weights: the base is drawn. Eight clients with 32 rows of 256 tokens
train adapters of rank 8 on the queries and values for one pass with Adam. The loop by hand has one model, an optimizer
a client, and a mean of the adapters; Medley comes after it, with the same model. Seconds are the median over
``--rounds`` rounds after one that is not counted. Memory is the GPU's peak beyond the base, in units of the base.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import pairwise

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import medley as md

CLIENTS = 8
ROWS = 32
TOKENS = 256
BATCH = 4
LR = 1e-3


def ids(small: bool) -> int:
    """The number of token ids."""
    return 500 if small else 32_000


def model(small: bool, device: str) -> nn.Module:
    """A Llama of about 1.1 billion parameters, or a tiny one, with LoRA adapters in float32."""
    width, layers = (64, 2) if small else (2048, 16)
    config = LlamaConfig(
        vocab_size=ids(small), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=width // 16 if small else 32, num_key_value_heads=4 if small else 8,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        base = LlamaForCausalLM(config).to(torch.bfloat16)
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"]))


def by_hand(net: nn.Module, rows: list[Tensor], rounds: int, device: str) -> list[float]:
    """Seconds of each round of the loop that one would write."""
    trained = [p for p in net.parameters() if p.requires_grad]
    x = [p.detach().clone() for p in trained]
    times = []
    net.train()
    for _ in range(rounds):
        began = clock(device)
        total = [torch.zeros_like(p) for p in x]
        for own_ids in rows:
            for p, v in zip(trained, x, strict=True):
                p.data.copy_(v)
            optimizer = torch.optim.Adam(trained, lr=LR)
            for batch in torch.randperm(len(own_ids)).split(BATCH):
                part = own_ids[batch].to(device)
                optimizer.zero_grad()
                md.problems.causal_lm(
                    net(input_ids=part, attention_mask=torch.ones_like(part)).logits, part
                ).mean().backward()
                optimizer.step()
            for t, p in zip(total, trained, strict=True):
                t += p.detach() / len(rows)
        x = total
        times.append(clock(device) - began)
    return times


def by_medley(net: nn.Module, rows: list[Tensor], rounds: int, device: str) -> list[float]:
    """Seconds of each round of Medley; a round ends where the next begins."""
    began: list[float] = []

    class Watched(md.FedAvg):
        def round(self, s: object, clients: object) -> object:
            began.append(clock(device))
            return super().round(s, clients)  # type: ignore[arg-type]

    fed = md.Federation(
        md.problems.Network(net, loss=md.problems.causal_lm, start="module", base="llama"),
        clients=[({"input_ids": r, "attention_mask": torch.ones_like(r)}, r) for r in rows],
        pace=md.scenarios.Pace(lr=LR, epochs=1, batch=BATCH, optimizer="adam"),
    )
    md.run(Watched(), fed, rounds + 1, device=device, eval_every=rounds + 1, eval_rows=8, progress=False)
    return [b - a for a, b in pairwise(began)]


def clock(device: str) -> float:
    """Seconds, when the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    g = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(1, ids(args.small), (ROWS, 32 if args.small else TOKENS), generator=g) for _ in range(CLIENTS)
    ]
    net = model(args.small, args.device)
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    print(f"{sum(p.numel() for p in net.parameters()):,} parameters, {size / 1e9:.2f} GB, {args.device}")
    print("| | seconds a round | peak memory beyond the base, in bases |\n|---|---|---|")
    for name, way in (("by hand", by_hand), ("Medley", by_medley)):
        if args.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()
        seconds = way(net, rows, args.rounds + 1, args.device)[1:]
        peak = (torch.cuda.max_memory_allocated() - size) / size if args.device.startswith("cuda") else float("nan")
        print(f"| {name} | {statistics.median(seconds):.3f} | {peak:.2f} |", flush=True)


if __name__ == "__main__":
    main()
