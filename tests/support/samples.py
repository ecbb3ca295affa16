"""Reads the lists of train's --sample-log, and checks that each sample counted once (docs/users/train.md).

A rank writes the file rank-R, in a later attempt rank-R.attempt-A. A line is "epoch step: numbers"; steps count from 1
over the whole training. A failure drops the step that its attempt had begun, so a step counts in the latest attempt that
made it.
"""

import collections
import pathlib
import re


def read(folder):
    """Returns {attempt: {(epoch, step): {rank: numbers}}}. A line without its end is ignored: its writer died."""
    found = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in pathlib.Path(folder).iterdir():
        rank, _, attempt = path.name.removeprefix("rank-").partition(".attempt-")
        if not re.fullmatch(r"\d+", rank):
            continue
        for line in path.read_text().split("\n")[:-1]:
            place, _, numbers = line.partition(":")
            epoch, step = map(int, place.split())
            found[int(attempt or 0)][epoch, step][int(rank)] = [int(number) for number in numbers.split()]
    return {attempt: dict(steps) for attempt, steps in found.items()}


def counting(attempts):
    """Returns [(epoch, step, attempt, {rank: numbers})] by step: the steps that no later attempt replaced."""
    steps, end = [], None
    for attempt in sorted(attempts, reverse=True):
        mine = [(epoch, step, attempt, ranks) for (epoch, step), ranks in attempts[attempt].items()
                if end is None or step < end]
        steps += mine
        if mine:
            end = min(step for _, step, _, _ in mine)
    return sorted(steps, key=lambda entry: (entry[1], entry[0]))


def problems(folder, samples, epochs):
    """Describes steps that are missing or that only some ranks made, and samples that an epoch did not use exactly once.
    Padding may repeat samples: while the number of ranks is constant, an epoch repeats fewer samples than there are ranks."""
    steps = counting(read(folder))
    reported = problems_of_steps(steps)
    uses, allowed, world = collections.defaultdict(collections.Counter), collections.Counter(), {}
    for epoch, _, _, ranks in steps:
        for numbers in ranks.values():
            uses[epoch].update(numbers)
        if world.get(epoch) != len(ranks):
            world[epoch] = len(ranks)
            allowed[epoch] += len(ranks) - 1
    for epoch in range(epochs):
        used = uses[epoch]
        if missing := sorted(set(range(samples)) - set(used)):
            reported.append(f"epoch {epoch}: {len(missing)} of {samples} samples were not used: {missing[:8]}")
        if strange := sorted(set(used) - set(range(samples))):
            reported.append(f"epoch {epoch}: no samples of this training: {strange[:8]}")
        surplus = sum(used.values()) - len(used)
        if surplus > allowed[epoch]:
            twice = sorted(number for number, times in used.items() if times > 1)
            reported.append(f"epoch {epoch}: {surplus} uses more than samples, {allowed[epoch]} may pad it: {twice[:8]}")
    if late := sorted(set(uses) - set(range(epochs))):
        reported.append(f"epochs beyond the last one: {late}")
    return reported


def problems_of_steps(steps):
    reported = []
    numbers = [step for _, step, _, _ in steps]
    if not numbers:
        return ["there is no step"]
    if missing := sorted(set(range(1, max(numbers) + 1)) - set(numbers)):
        reported.append(f"{len(missing)} of {max(numbers)} steps are missing: {missing[:8]}")
    if len(set(numbers)) != len(numbers):
        reported.append("a step belongs to two epochs")
    world = {}
    for _, step, attempt, ranks in steps:
        world[attempt] = max(world.get(attempt, 0), len(ranks))
        if sorted(ranks) != list(range(len(ranks))):
            reported.append(f"step {step} of attempt {attempt} was made by ranks {sorted(ranks)}")
    reported += [f"step {step} of attempt {attempt} was made by {len(ranks)} of {world[attempt]} ranks"
             for _, step, attempt, ranks in steps if len(ranks) != world[attempt]]
    return reported
