"""Trains a small network with Hugging Face Accelerate.

    ddplaunch --nproc-per-node 2 docs/examples/accelerate_ddp.py
    ddplaunch --hostfile hosts --nproc-per-node gpu --env ACCELERATE_MIXED_PRECISION=bf16 docs/examples/accelerate_ddp.py

ddplaunch --accelerate-config FILE reads the file that `accelerate config` has written (docs/users/migrating.md).
"""
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3

accelerator = Accelerator(cpu=not torch.cuda.is_available())
set_seed(0)
inputs = torch.randn(1024, 16)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(EPOCHS):
    for batch, target in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    mean = accelerator.reduce(loss.detach(), "mean")
    if accelerator.is_main_process:
        print(f"epoch {epoch + 1}/{EPOCHS} loss {mean.item():.4f}", flush=True)
accelerator.end_training()
