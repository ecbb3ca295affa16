"""Trains a small network with DeepSpeed ZeRO stage 1: each rank keeps a part of the optimizer's state.

    ddplaunch --nproc-per-node 2 docs/examples/deepspeed_zero.py
    ddplaunch --hostfile hosts --nproc-per-node gpu docs/examples/deepspeed_zero.py

On CPUs DeepSpeed compiles a library for its collectives when it first runs, which takes a minute.
"""
import os

import deepspeed
import torch

STEPS = 30
CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "bf16": {"enabled": True},
}

deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
engine, _, _, _ = deepspeed.initialize(model=network, optimizer=optimizer, config=CONFIG)

rank = int(os.environ["RANK"])
torch.manual_seed(1 + rank)  # other data on each rank
for step in range(1, STEPS + 1):
    batch = torch.randn(32, 16).to(engine.device, torch.bfloat16)
    loss = torch.nn.functional.mse_loss(engine(batch), batch.sum(1, keepdim=True))
    engine.backward(loss)
    engine.step()
    if rank == 0 and step % 10 == 0:
        print(f"step {step}/{STEPS} loss {loss.item():.4f}", flush=True)
torch.distributed.destroy_process_group()
