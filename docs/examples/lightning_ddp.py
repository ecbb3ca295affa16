"""Trains a small network with Lightning, which finds its ranks in torchrun's variables.

    ddplaunch --nproc-per-node 2 docs/examples/lightning_ddp.py
    ddplaunch --hostfile hosts --nproc-per-node gpu docs/examples/lightning_ddp.py

devices and num_nodes must fit the job; here they are read from it.
"""
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

LOCAL_WORLD = int(os.environ["LOCAL_WORLD_SIZE"])
NODES = int(os.environ["WORLD_SIZE"]) // LOCAL_WORLD


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, _):
        inputs, target = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), target)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def on_train_epoch_end(self):
        if self.global_rank == 0:
            loss = self.trainer.callback_metrics["loss"]
            print(f"epoch {self.current_epoch + 1}/{self.trainer.max_epochs} loss {loss:.4f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(0, verbose=False)
inputs = torch.randn(1024, 16)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32)
trainer = lightning.Trainer(accelerator="auto" if torch.cuda.is_available() else "cpu", strategy="ddp", devices=LOCAL_WORLD,
                            num_nodes=NODES, max_epochs=3, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Network(), loader)
