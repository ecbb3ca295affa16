"""PyTorch trains the tutorial's ConvNet on a GPU, as `train --device gpu` does: SGD with momentum, float32, synthetic data.

usage: torch_gpu_peer.py BATCH IMAGES INTERVAL INTERVALS [mlp]

mlp: an MLP of 2048 x 7 instead, also with bfloat16 (autocast). The program measures two ways, each with and without TF32: DistributedDataParallel over NCCL (a world of one), step by step,
and whole steps replayed as a CUDA graph, without DDP. It times INTERVAL steps at a time and reads the loss at their end, as a
progress line of `train` does. The first interval warms up. All IMAGES lie on the GPU as float32 and are taken in their order.
PyTorch therefore needs no shuffling, gathering or conversion, all of which `train` does in its time. cuDNN may choose its
fastest kernels. Prints one JSON object: rows of way, tf32, bf16, batch, images/s (median, least, most).
"""
import json
import os
import statistics
import sys
import tempfile
import time

import torch

BATCH, IMAGES, INTERVAL, INTERVALS = map(int, sys.argv[1:5])
MLP = sys.argv[5:] == ["mlp"]
GPU = torch.device("cuda", 0)


def block(inside, out):
    return (torch.nn.Conv2d(inside, out, 5, padding=2), torch.nn.BatchNorm2d(out), torch.nn.ReLU(), torch.nn.MaxPool2d(2))


def fresh():
    torch.manual_seed(0)
    if MLP:
        layers = [torch.nn.Flatten()]
        for inputs in (28 * 28, *[2048] * 6):
            layers += [torch.nn.Linear(inputs, 2048), torch.nn.ReLU()]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(2048, 10)).to(GPU)
    else:
        net = torch.nn.Sequential(*block(1, 16), *block(16, 32), torch.nn.Flatten(), torch.nn.Linear(7 * 7 * 32, 10)).to(GPU)
    return net, lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def batches(images, labels):
    at = 0
    while True:
        if at + BATCH > len(images):
            at = 0
        yield images[at:at + BATCH], labels[at:at + BATCH]
        at += BATCH


def loss_of(net, some, wanted, bf16):
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16, cache_enabled=False):  # a captured graph may not cache
        return torch.nn.functional.cross_entropy(net(some), wanted)


def eager(images, labels, bf16):
    """Returns a function that makes one step and returns its loss, on the GPU."""
    net, make_optimizer = fresh()
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[0])
    optimizer, source = make_optimizer(net), batches(images, labels)

    def step():
        some, wanted = next(source)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net, some, wanted, bf16)
        loss.backward()
        optimizer.step()
        return loss

    return step


def graph(images, labels, bf16):
    net, make_optimizer = fresh()
    optimizer, source = make_optimizer(net), batches(images, labels)
    some, wanted = (part.clone() for part in next(source))

    def whole():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(net, some, wanted, bf16)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(11):
            whole()
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = whole()

    def step():
        images_now, labels_now = next(source)
        some.copy_(images_now)
        wanted.copy_(labels_now)
        captured.replay()
        return loss

    return step


def measure(make, tf32, bf16, images, labels):
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    step = make(images, labels, bf16)
    rates = []
    for _ in range(1 + INTERVALS):
        begin = time.perf_counter()
        for _ in range(INTERVAL):
            loss = step()
        value = loss.item()
        rates.append(BATCH * INTERVAL / (time.perf_counter() - begin))
    if not value < 10:
        sys.exit(f"the loss is {value}")
    return {"images_per_second": statistics.median(rates[1:]), "least": min(rates[1:]), "most": max(rates[1:])}


def main():
    torch.backends.cudnn.benchmark = True
    images = torch.rand(IMAGES, 1, 28, 28, device=GPU)
    labels = torch.randint(10, (IMAGES,), device=GPU)
    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(0)
        torch.distributed.init_process_group("nccl", init_method="file://" + os.path.join(folder, "meeting"), rank=0, world_size=1)
        rows = [{"way": way, "tf32": tf32, "bf16": bf16, "batch": BATCH, **measure(make, tf32, bf16, images, labels)}
                for way, make in (("DDP, step by step", eager), ("CUDA graph", graph))
                for tf32, bf16 in ((False, False), (True, False), *([(True, True)] if MLP else []))]
        torch.distributed.destroy_process_group()
    print(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "gpu": torch.cuda.get_device_name(0),
                      "rows": rows}))


if __name__ == "__main__":
    main()
