#!/usr/bin/env python3
"""Compares `train` with PyTorch: the tutorial's ConvNet under DistributedDataParallel (Gloo), same weights, same data. Skips
(77) if no interpreter has torch. DDP_TEST_TORCH_PYTHON may name one.

usage: torch_compare_test.py PATH_OF_TRAIN [unittest options]"""
import contextlib
import json
import multiprocessing
import os
import pathlib
import struct
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3]))
from tests.support import pytorch
from tests.support.ports import free_port
from tests.support.train_ranks import Ranks, write_images

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
except ImportError:  # another interpreter that has torch runs this file again
    for python in reversed(pytorch.interpreters()):
        os.execv(python, [python, *sys.argv])
    print("skipped: no torch; Debian's package is python3-torch")
    sys.exit(77)
if pytorch.lacks_libuv(dist):
    os.environ.update(pytorch.WITHOUT_LIBUV)

TRAIN = ""
CLASSES, SIDE = 10, 28
TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
# The settings of one comparison.
DEFAULTS = {"mlp": None, "batch": 10, "accumulate": 1, "epochs": 1, "limit": 2000, "steps": 50, "optimizer": "sgd", "lr": 0.01,
            "momentum": 0.9, "weight_decay": 0, "clip_value": 0, "clip_norm": 0, "zero": False, "sync_every": 1, "warmup": 0}


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size, = struct.unpack_from("<Q", data)
    header = {k: v for k, v in json.loads(data[8:8 + size]).items() if k != "__metadata__"}

    def tensor(entry):
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        return torch.frombuffer(bytearray(data[begin:end]), dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])
    return {name: tensor(entry) for name, entry in header.items()}


def write_safetensors(path, state):
    header, parts, at = {}, [], 0
    for name, tensor in state.items():
        data = tensor.contiguous().numpy().tobytes()
        kind = next(text for text, dtype in TYPES.items() if dtype == tensor.dtype)
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


class ConvNet(torch.nn.Module):
    """The model of the tutorials."""

    def __init__(self):
        super().__init__()

        def block(inside, out):
            return torch.nn.Sequential(torch.nn.Conv2d(inside, out, 5, padding=2), torch.nn.BatchNorm2d(out),
                                       torch.nn.ReLU(), torch.nn.MaxPool2d(2))
        self.layer1, self.layer2, self.fc = block(1, 16), block(16, 32), torch.nn.Linear(7 * 7 * 32, CLASSES)

    def forward(self, x):
        x = self.layer2(self.layer1(x))
        return self.fc(x.reshape(x.size(0), -1))


def mlp(width, depth):
    layers = []
    for i in range(depth + 1):
        layers += [torch.nn.Linear(SIDE * SIDE if i == 0 else width, CLASSES if i == depth else width), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def make_data(folder, training, test):
    """Writes IDX files of blurred pictures of the classes, with noise."""
    torch.manual_seed(5)
    pictures = torch.nn.functional.interpolate(torch.rand(CLASSES, 1, 7, 7), size=SIDE)[:, 0]
    for name, count in (("train", training), ("t10k", test)):
        labels = torch.randint(CLASSES, (count,))
        images = ((0.6 * pictures[labels] + 0.4 * torch.rand(count, SIDE, SIDE)) * 255).to(torch.uint8)
        write_images(folder, name, images.numpy().tobytes(), labels.to(torch.uint8).numpy().tobytes())


def load_data(folder, name, dtype):
    images = pathlib.Path(folder, f"{name}-images-idx3-ubyte").read_bytes()[16:]
    labels = pathlib.Path(folder, f"{name}-labels-idx1-ubyte").read_bytes()[8:]
    images = torch.frombuffer(bytearray(images), dtype=torch.uint8).reshape(-1, 1, SIDE, SIDE)
    return images.to(dtype) / 255, torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()


def groups_of(order, task):
    """Returns the steps of one epoch, each a list of batches. The last step may have fewer batches, and its last batch fewer
    samples."""
    batches = [order[i:i + task["batch"]] for i in range(0, len(order), task["batch"])]
    return [batches[i:i + task["accumulate"]] for i in range(0, len(batches), task["accumulate"])]


def make_optimizer(task, parameters):
    kind, settings = {"sgd": (torch.optim.SGD, {"momentum": task["momentum"]}), "adamw": (torch.optim.AdamW, {})}[task["optimizer"]]
    settings |= {"lr": task["lr"], "weight_decay": task["weight_decay"]}
    if task["zero"]:
        return ZeroRedundancyOptimizer(parameters, kind, **settings)
    return kind(parameters, **settings)


def make_schedule(task, optimizer, steps):
    warmup = task["warmup"]
    if not warmup:
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1)
    rates = torch.optim.lr_scheduler
    return rates.SequentialLR(optimizer, [rates.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1),
                                          rates.CosineAnnealingLR(optimizer, T_max=steps - warmup)], milestones=[warmup])


def mean_over(group, tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
        tensor /= dist.get_world_size(group)


def torch_rank(task):
    """Runs one rank of the reference. Rank 0 writes the losses and the final state."""
    rank, world, dtype = task["rank"], task["world"], TYPES[task["dtype"]]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{task['port']}", rank=rank, world_size=world)
    # With several nodes, their weights are averaged every few steps.
    firsts = [sum(task["nodes"][:i]) for i in range(len(task["nodes"]))]
    groups = [dist.new_group(range(first, first + size)) for first, size in zip(firsts, task["nodes"])]
    node = next(group for group, first, size in zip(groups, firsts, task["nodes"]) if first <= rank < first + size)
    model = ConvNet() if task["mlp"] is None else mlp(*task["mlp"])
    model.to(dtype).load_state_dict(read_safetensors(task["init"]), strict=True)
    # Every rank keeps the running statistics of its own batches, as `train` does. Their mean is taken at the end.
    parallel = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, process_group=node)
    images, labels = (part[:task["limit"]] for part in load_data(task["data"], "train", dtype))
    sampler = torch.utils.data.distributed.DistributedSampler(range(len(labels)), world, rank, shuffle=True, seed=0)
    optimizer = make_optimizer(task, model.parameters())
    schedule = make_schedule(task, optimizer, task["epochs"] * len(groups_of(list(sampler), task)))
    losses = []
    for epoch in range(task["epochs"]):
        sampler.set_epoch(epoch)
        steps = groups_of(list(sampler), task)
        for number, batches in enumerate(steps):
            if task["steps"] and len(losses) == task["steps"]:
                break
            optimizer.zero_grad()
            mean = torch.zeros((), dtype=dtype)
            for batch in batches:
                pictures = images[batch] if task["mlp"] is None else images[batch].reshape(len(batch), -1)
                with contextlib.nullcontext() if batch is batches[-1] else parallel.no_sync():
                    loss = torch.nn.functional.cross_entropy(parallel(pictures), labels[batch]) / len(batches)
                    loss.backward()
                mean += loss.detach()
            if task["clip_value"]:
                torch.nn.utils.clip_grad_value_(model.parameters(), task["clip_value"])
            if task["clip_norm"]:
                torch.nn.utils.clip_grad_norm_(model.parameters(), task["clip_norm"])
            optimizer.step()
            schedule.step()
            mean_over(node, [mean])
            losses.append(mean.item())
            if len(losses) % task["sync_every"] == 0 or number + 1 == len(steps):
                with torch.no_grad():
                    mean_over(None, model.parameters() if len(groups) > 1 else [])
    mean_over(None, [buffer for buffer in model.buffers() if buffer.dtype.is_floating_point])
    if rank == 0:
        write_safetensors(task["out"], model.state_dict())
        pathlib.Path(task["out"] + ".json").write_text(json.dumps(losses))
    dist.barrier()


class Comparison(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ddp-torch-")
        cls.data = cls.folder.name
        make_data(cls.data, 2000, 203)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.data, f"{self.id().rsplit('.', 1)[1]}-{name}")

    def initial_weights(self, dtype, model=None):
        torch.manual_seed(11)
        model = (model or ConvNet()).to(TYPES[dtype])
        write_safetensors(self.path("init"), model.state_dict())
        return self.path("init")

    def torch_run(self, **task):
        task = {"data": self.data, "port": free_port(), "out": self.path("torch"), **DEFAULTS, "nodes": [task["world"]], **task}
        # The ranks are forked, since importing torch takes longer than the training.
        ranks = [multiprocessing.get_context("fork").Process(target=torch_rank, args=({**task, "rank": rank},), daemon=True)
                 for rank in range(task["world"])]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(200)
        self.assertEqual([rank.exitcode for rank in ranks], [0] * task["world"])
        return json.loads(pathlib.Path(task["out"] + ".json").read_text()), read_safetensors(task["out"])

    def train_run(self, world, *arguments, nodes=()):
        command = (TRAIN, "--data", self.data, "--export", self.path("ours"), "--metrics-file", self.path("metrics"), *arguments)
        with Ranks(command, world, nodes) as ranks:
            for code, _, errors in ranks.finish(timeout=200):
                self.assertEqual(code, 0, errors)
        lines = [json.loads(line) for line in pathlib.Path(self.path("metrics")).read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "step"], lines[-1], read_safetensors(self.path("ours"))

    def worst(self, ours, theirs):
        """Returns the largest distance of a tensor, relative to its norm, and the tensor's name."""
        self.assertEqual(set(ours), set(theirs))
        return max(((ours[name].double() - theirs[name].double()).norm().item() /
                    max(theirs[name].double().norm().item(), 1e-3), name) for name in theirs)

    def compare_float64(self, world, tolerance=1e-9, model=None, **task):
        """Trains with the same hyperparameters in both programs. The keys of `task` are those of DEFAULTS."""
        init = self.initial_weights("F64", model)
        task = {**DEFAULTS, "world": world, "dtype": "F64", "init": init, **task}
        theirs, their_state = self.torch_run(**task)
        options = {"--batch-size": task["batch"], "--accumulate": task["accumulate"], "--epochs": task["epochs"],
                   "--limit": task["limit"], "--max-steps": task["steps"], "--optimizer": task["optimizer"], "--lr": task["lr"],
                   "--weight-decay": task["weight_decay"], "--clip-value": task["clip_value"],
                   "--clip-norm": task["clip_norm"], "--zero": int(task["zero"]), "--sync-every-inter": task["sync_every"],
                   "--warmup-steps": task["warmup"], "--lr-schedule": "cosine" if task["warmup"] else "constant"}
        if task["optimizer"] == "sgd":
            options |= {"--momentum": task["momentum"]}
        if task["mlp"]:
            options |= {"--model": "mlp", "--mlp-width": task["mlp"][0], "--mlp-depth": task["mlp"][1]}
        ours, _, our_state = self.train_run(world, "--dtype", "float64", "--init-from", init,
                                            *(word for pair in options.items() for word in pair), nodes=task.get("nodes", ()))
        self.assertEqual(len(ours), len(theirs))
        loss = max(abs(a - b) for a, b in zip(ours, theirs))
        distance, name = self.worst(our_state, their_state)
        print(f"float64, {world} ranks, {len(ours)} steps: loss within {loss:.1e}, weights within {distance:.1e} ({name})",
              file=sys.stderr)
        self.assertLessEqual(loss, tolerance)
        self.assertLessEqual(distance, tolerance)

    def compare_mlp(self, world, **task):
        self.compare_float64(world, model=mlp(65, 3), mlp=[65, 3], **task)

    def test_50_steps_in_float64_on_one_rank(self):
        self.compare_float64(1)

    def test_50_steps_in_float64_on_four_ranks(self):
        self.compare_float64(4)

    def test_adamw_and_clipping_in_float64(self):
        self.compare_float64(2, optimizer="adamw", weight_decay=0.01, clip_norm=0.5, steps=20, lr=0.001,
                             # Biases before a normalization have gradient 0 except for rounding errors, which AdamW enlarges.
                             tolerance=1e-7)

    def test_the_mlp_in_float64(self):
        self.compare_mlp(2, steps=20)

    # 331 images: 111 per rank, 16 batches (the last one has 6 images), 6 steps an epoch (the last one has one batch).
    UNEVEN = {"limit": 331, "batch": 7, "accumulate": 3, "epochs": 2, "steps": 0}

    def test_accumulation_and_clipping_on_uneven_data(self):
        self.compare_float64(3, **self.UNEVEN, weight_decay=0.01, clip_value=0.02, clip_norm=0.5)

    def test_adamw_with_accumulation_and_clipping_on_uneven_data(self):
        self.compare_mlp(3, **self.UNEVEN, optimizer="adamw", lr=0.001, weight_decay=0.01, clip_value=0.02, clip_norm=0.05)

    def test_zero_1_as_zero_redundancy_optimizer(self):
        for optimizer, rate in (("sgd", 0.01), ("adamw", 0.001)):
            with self.subTest(optimizer):
                self.compare_mlp(3, **self.UNEVEN, optimizer=optimizer, lr=rate, weight_decay=0.01, clip_norm=0.05, zero=True)
                os.remove(self.path("metrics"))

    def test_nodes_of_unequal_size_averaged_every_few_steps(self):
        for optimizer, rate in (("sgd", 0.01), ("adamw", 0.001)):
            with self.subTest(optimizer):
                self.compare_mlp(3, **self.UNEVEN, optimizer=optimizer, lr=rate, clip_norm=0.05, nodes=[2, 1], sync_every=4)
                os.remove(self.path("metrics"))

    def test_warm_up_and_cosine_as_sequential_lr(self):
        self.compare_float64(2, limit=800, epochs=2, steps=0, warmup=7, lr=0.05)

    def test_one_step_in_float32(self):
        init = self.initial_weights("F32")
        exact = {name: tensor.double() if tensor.dtype == torch.float32 else tensor
                 for name, tensor in read_safetensors(init).items()}
        write_safetensors(self.path("init64"), exact)
        # The step is large, so that the weight's own digits hide none of the gradient's.
        rate = 1024
        _, theirs = self.torch_run(world=1, dtype="F64", init=self.path("init64"), batch=100, steps=1, lr=rate, momentum=0)
        _, _, ours = self.train_run(1, "--batch-size", 100, "--max-steps", 1, "--init-from", init, "--lr", rate, "--momentum", 0)
        weight_norm, worst = 1.0, 0.0
        for name, before in exact.items():
            if "running" in name or "num_batches" in name:
                continue
            gradient = (before - theirs[name]) / rate
            error = ((before - ours[name].double()) / rate - gradient).norm().item()
            if name in ("layer1.0.bias", "layer2.0.bias"):  # mathematically 0, since the next layer subtracts the mean
                self.assertLessEqual(error, 1e-3 * weight_norm, name)
            else:
                worst = max(worst, error / gradient.norm().item())
                self.assertLessEqual(error / gradient.norm().item(), 2e-5, name)
            weight_norm = gradient.norm().item()
        print(f"float32, one step: gradients within {worst:.1e} per tensor", file=sys.stderr)

    def test_ten_steps_in_float32(self):
        init = self.initial_weights("F32")
        theirs, _ = self.torch_run(world=1, dtype="F32", init=init, batch=100, steps=10, lr=0.01)
        ours, _, _ = self.train_run(1, "--batch-size", 100, "--max-steps", 10, "--init-from", init)
        loss = max(abs(a - b) for a, b in zip(ours, theirs))
        print(f"float32, ten steps: loss within {loss:.1e}", file=sys.stderr)
        self.assertLessEqual(loss, 1e-3)

    def test_exported_weights_give_the_same_accuracy_in_pytorch(self):
        for dtype, name in (("F32", "float32"), ("F64", "float64")):
            _, result, state = self.train_run(1, "--dtype", name, "--max-steps", 20)
            model = ConvNet().to(TYPES[dtype])
            model.load_state_dict(state, strict=True)
            model.eval()
            images, labels = load_data(self.data, "t10k", TYPES[dtype])
            with torch.no_grad():
                correct = (model(images).argmax(1) == labels).sum().item()
            self.assertEqual((correct, len(labels)), (result["test_correct"], result["test_total"]))
            self.assertEqual(state["layer1.1.num_batches_tracked"].item(), 20)
            os.remove(self.path("metrics"))


if __name__ == "__main__":
    TRAIN = sys.argv.pop(1)
    torch.set_num_threads(1)  # two cores for all ranks; and a process with threads must not fork
    unittest.main(verbosity=2)
