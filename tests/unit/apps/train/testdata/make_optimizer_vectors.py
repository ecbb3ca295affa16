#!/usr/bin/env python3
"""Makes optimizer_vectors.txt with torch (1.13 made the stored one): AdamW under a cosine learning rate, in float64.

usage: make_optimizer_vectors.py > optimizer_vectors.txt"""
import torch

STEPS = 12
torch.manual_seed(3)
weight = torch.tensor([1, -2, 0.125, 0], dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.AdamW([weight], lr=0.1, betas=(0.8, 0.99), eps=1e-8, weight_decay=0.05)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
for _ in range(STEPS):
    weight.grad = torch.randn(4, dtype=torch.float64) * torch.tensor([1, 1e-3, 100, 0], dtype=torch.float64)
    rate = optimizer.param_groups[0]["lr"]
    optimizer.step()
    schedule.step()
    print("adamw", repr(rate), *map(repr, weight.grad.tolist() + weight.tolist()))

peak = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(peak, 20)
for step in range(21):
    print("cosine", step, 20, repr(peak.param_groups[0]["lr"]))
    peak.step()
    schedule.step()
