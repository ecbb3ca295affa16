#!/usr/bin/env python3
"""`train` against PyTorch: the tutorial's ConvNet under DistributedDataParallel (Gloo) from the same weights on the same
data. Skips (77) where no interpreter has torch; DDP_TEST_TORCH_PYTHON may name one.

usage: torch_compare_test.py PATH_OF_TRAIN [unittest options]"""
import json
import multiprocessing
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    import torch.distributed as dist
except ImportError:  # not this interpreter: the one that has it runs this file again
    for python in (os.environ.get("DDP_TEST_TORCH_PYTHON"), "/usr/bin/python3"):
        if python and subprocess.run([python, "-c", "import torch.distributed as d; assert d.is_available()"],
                                     capture_output=True, check=False).returncode == 0:
            os.execv(python, [python, *sys.argv])
    print("skipped: no torch; Debian's package is python3-torch")
    sys.exit(77)

TRAIN = ""
CLASSES, SIDE = 10, 28
TYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


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
    """The tutorials' model."""

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
    """IDX files of blurred class pictures under noise."""
    torch.manual_seed(5)
    pictures = torch.nn.functional.interpolate(torch.rand(CLASSES, 1, 7, 7), size=SIDE)[:, 0]
    for name, count in (("train", training), ("t10k", test)):
        labels = torch.randint(CLASSES, (count,))
        images = ((0.6 * pictures[labels] + 0.4 * torch.rand(count, SIDE, SIDE)) * 255).to(torch.uint8)
        pathlib.Path(folder, f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 0x803, count, SIDE, SIDE) + images.numpy().tobytes())
        pathlib.Path(folder, f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, count) + labels.to(torch.uint8).numpy().tobytes())


def load_data(folder, name, dtype):
    images = pathlib.Path(folder, f"{name}-images-idx3-ubyte").read_bytes()[16:]
    labels = pathlib.Path(folder, f"{name}-labels-idx1-ubyte").read_bytes()[8:]
    images = torch.frombuffer(bytearray(images), dtype=torch.uint8).reshape(-1, 1, SIDE, SIDE)
    return images.to(dtype) / 255, torch.frombuffer(bytearray(labels), dtype=torch.uint8).long()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torch_rank(task):
    """One rank of the reference; rank 0 writes losses and final state."""
    rank, world, dtype = task["rank"], task["world"], TYPES[task["dtype"]]
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{task['port']}", rank=rank, world_size=world)
    model = ConvNet() if task["mlp"] is None else mlp(*task["mlp"])
    model.to(dtype).load_state_dict(read_safetensors(task["init"]), strict=True)
    # Every rank keeps the running statistics of its own batches, as `train` does; their mean is taken at the end.
    parallel = torch.nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    images, labels = load_data(task["data"], "train", dtype)
    sampler = torch.utils.data.distributed.DistributedSampler(range(len(labels)), world, rank, shuffle=True, seed=0)
    sampler.set_epoch(0)
    order = list(sampler)
    if task["optimizer"] == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=task["lr"], weight_decay=0.01)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=task["lr"], momentum=task["momentum"])
    losses = []
    for step in range(task["steps"]):
        samples = order[step * task["batch"]:(step + 1) * task["batch"]]
        pictures = images[samples] if task["mlp"] is None else images[samples].reshape(len(samples), -1)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(pictures), labels[samples])
        loss.backward()
        if task["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), task["clip_norm"])
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    for buffer in model.buffers():
        if buffer.dtype.is_floating_point:
            dist.all_reduce(buffer)
            buffer /= world
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

    def processes(self, commands):
        """Runs all at once; stdout of the first."""
        started = [subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for command, env in commands]
        try:
            ends = [process.communicate(timeout=200) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        for process, (_, errors) in zip(started, ends):
            self.assertEqual(process.returncode, 0, errors)
        return ends[0][0]

    def torch_run(self, **task):
        task = {"data": self.data, "port": free_port(), "out": self.path("torch"), "optimizer": "sgd", "mlp": None,
                "momentum": 0.9, "clip_norm": 0, **task}
        # Forked: the import of torch takes longer than the training.
        ranks = [multiprocessing.get_context("fork").Process(target=torch_rank, args=({**task, "rank": rank},), daemon=True)
                 for rank in range(task["world"])]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(200)
        self.assertEqual([rank.exitcode for rank in ranks], [0] * task["world"])
        return json.loads(pathlib.Path(task["out"] + ".json").read_text()), read_safetensors(task["out"])

    def train_run(self, world, *arguments):
        base = {k: v for k, v in os.environ.items() if k not in LAUNCHER_VARIABLES}
        place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                 "TORCHELASTIC_RUN_ID": "torch-compare"} if world > 1 else {}
        command = [TRAIN, "--data", self.data, "--export", self.path("ours"), "--metrics-file", self.path("metrics"),
                   *map(str, arguments)]
        self.processes([(command, base | place | ({"RANK": str(r), "LOCAL_RANK": str(r)} if world > 1 else {}))
                        for r in range(world)])
        lines = [json.loads(line) for line in pathlib.Path(self.path("metrics")).read_text().splitlines()]
        return [line["loss"] for line in lines if line["kind"] == "step"], lines[-1], read_safetensors(self.path("ours"))

    def worst(self, ours, theirs):
        """The largest distance of a tensor, relative to its norm, and its name."""
        self.assertEqual(set(ours), set(theirs))
        return max(((ours[name].double() - theirs[name].double()).norm().item() /
                    max(theirs[name].double().norm().item(), 1e-3), name) for name in theirs)

    def compare_float64(self, world, extra=(), tolerance=1e-9, model=None, **task):
        init = self.initial_weights("F64", model)
        task = {"world": world, "dtype": "F64", "init": init, "batch": 10, "steps": 50, "lr": 0.01, **task}
        theirs, their_state = self.torch_run(**task)
        ours, _, our_state = self.train_run(world, "--dtype", "float64", "--batch-size", task["batch"], "--max-steps",
                                            task["steps"], "--init-from", init, "--lr", task["lr"], *extra)
        self.assertEqual(len(ours), task["steps"])
        loss = max(abs(a - b) for a, b in zip(ours, theirs))
        distance, name = self.worst(our_state, their_state)
        print(f"float64, {world} ranks, {task['steps']} steps: loss within {loss:.1e}, weights within {distance:.1e} ({name})",
              file=sys.stderr)
        self.assertLessEqual(loss, tolerance)
        self.assertLessEqual(distance, tolerance)
        return our_state

    def test_50_steps_in_float64_on_one_rank(self):
        self.compare_float64(1)

    def test_50_steps_in_float64_on_four_ranks(self):
        self.compare_float64(4)

    def test_adamw_and_clipping_in_float64(self):
        self.compare_float64(2, ("--optimizer", "adamw", "--weight-decay", 0.01, "--clip-norm", 0.5), optimizer="adamw",
                             steps=20, lr=0.001, clip_norm=0.5,
                             # Biases before a normalisation have gradient 0 but for rounding, which AdamW makes larger.
                             tolerance=1e-7)

    def test_the_mlp_in_float64(self):
        self.compare_float64(2, ("--model", "mlp", "--mlp-width", 65, "--mlp-depth", 3), model=mlp(65, 3), mlp=[65, 3], steps=20)

    def test_one_step_in_float32(self):
        init = self.initial_weights("F32")
        exact = {name: tensor.double() if tensor.dtype == torch.float32 else tensor
                 for name, tensor in read_safetensors(init).items()}
        write_safetensors(self.path("init64"), exact)
        # A large step, so that the weight's own digits hide none of the gradient's.
        rate = 1024
        _, theirs = self.torch_run(world=1, dtype="F64", init=self.path("init64"), batch=100, steps=1, lr=rate, momentum=0)
        _, _, ours = self.train_run(1, "--batch-size", 100, "--max-steps", 1, "--init-from", init, "--lr", rate, "--momentum", 0)
        weight_norm, worst = 1.0, 0.0
        for name, before in exact.items():
            if "running" in name or "num_batches" in name:
                continue
            gradient = (before - theirs[name]) / rate
            error = ((before - ours[name].double()) / rate - gradient).norm().item()
            if name in ("layer1.0.bias", "layer2.0.bias"):  # 0 in mathematics: what comes behind takes the mean away
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
