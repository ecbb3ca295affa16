#!/usr/bin/env python3
"""Prints convnet_reference.txt: five steps of the ConvNet in PyTorch, float64, on the pictures of conv_net_test.cc. The
initial weights are those of `train --seed 3`. Needs torch and numpy (Debian's python3-torch is sufficient)."""
import math

import numpy
import torch

SEED, BATCH, STEPS = 3, 6, 5
LAYOUT = [("layer1.0.weight", 400, 25), ("layer1.0.bias", 16, 25), ("layer1.1.weight", 16, 0), ("layer1.1.bias", 16, 0),
          ("layer2.0.weight", 12800, 400), ("layer2.0.bias", 32, 400), ("layer2.1.weight", 32, 0),
          ("layer2.1.bias", 32, 0), ("fc.weight", 15680, 1568), ("fc.bias", 10, 1568)]  # name, size, fan_in
MASK = 2**64 - 1


def mix(x):  # apps/train/data/hash.h
    x = x + 0x9e3779b97f4a7c15 & MASK
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def unit(seed, stream, counter):
    return (mix(mix(mix(seed) ^ stream) ^ counter) >> 11) * 2.0**-53


def flat(name, tensor):
    """Returns the tensor in train's order: convolutions [ky][kx][in][out], the linear layer [class][y][x][channel]."""
    tensor = tensor.detach()
    if tensor.dim() == 4:
        tensor = tensor.permute(2, 3, 1, 0)
    elif name == "fc.weight":
        tensor = tensor.reshape(10, 32, 7, 7).permute(0, 2, 3, 1)
    return tensor.contiguous().reshape(-1).numpy()


def shaped(name, values, like):
    values = torch.tensor(values)
    if like.dim() == 4:
        out, inside, high, wide = like.shape
        return values.reshape(high, wide, inside, out).permute(3, 2, 0, 1)
    if name == "fc.weight":
        return values.reshape(10, 7, 7, 32).permute(0, 3, 1, 2).reshape(10, -1)
    return values


class ConvNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        def block(inside, out):
            return torch.nn.Sequential(torch.nn.Conv2d(inside, out, 5, padding=2), torch.nn.BatchNorm2d(out),
                                       torch.nn.ReLU(), torch.nn.MaxPool2d(2))
        self.layer1, self.layer2, self.fc = block(1, 16), block(16, 32), torch.nn.Linear(7 * 7 * 32, 10)

    def forward(self, x):
        x = self.layer2(self.layer1(x))
        return self.fc(x.reshape(x.size(0), -1))


def batch(number):
    images = numpy.zeros((BATCH, 784))
    for i in range(BATCH):
        common = (mix(1000 * number + i) >> 8 & 255) / 255 * 0.5
        for p in range(784):
            images[i, p] = common + (mix((number * 100 + i) * 784 + p) >> 16 & 255) / 255 * 0.5
    labels = [mix(77 * number + i) % 10 for i in range(BATCH)]
    return torch.tensor(images).reshape(BATCH, 1, 28, 28), torch.tensor(labels)


def show(kind, name, values):
    numbers = (numpy.linalg.norm(values), values[0], values[len(values) // 2], values[-1])
    print(kind, name, *(f"{number:.17g}" for number in numbers))


torch.set_default_dtype(torch.float64)
net = ConvNet()
tensors = dict(net.named_parameters())
for stream, (name, size, fan_in) in enumerate(LAYOUT):
    if fan_in:
        values = [(2 * unit(SEED, stream, i) - 1) / math.sqrt(fan_in) for i in range(size)]
    else:
        values = [1.0 if name.endswith("weight") else 0.0] * size
    with torch.no_grad():
        tensors[name].copy_(shaped(name, values, tensors[name]))

print(f"# torch {torch.__version__}, float64: loss of each step; gradients of step 0, weights and running statistics after "
      f"step {STEPS - 1} as norm, first, middle, last; evaluation of batch 9 as loss sum, correct")
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for step in range(STEPS):
    images, labels = batch(step)
    optimizer.zero_grad()
    loss = torch.nn.CrossEntropyLoss()(net(images), labels)
    loss.backward()
    print("step", step, f"{loss.item():.17g}")
    if step == 0:
        for name, _, _ in LAYOUT:
            show("gradient", name, flat(name, tensors[name].grad))
    optimizer.step()
for name, _, _ in LAYOUT:
    show("weight", name, flat(name, tensors[name]))
for name, values in net.named_buffers():
    if not name.endswith("num_batches_tracked"):
        show("running", name, values.numpy())
net.eval()
images, labels = batch(9)
scores = net(images)
print("evaluation", f"{torch.nn.CrossEntropyLoss(reduction='sum')(scores, labels).item():.17g}",
      (scores.argmax(1) == labels).sum().item())
