"""The tables of docs/developers/measurements_gpu.md, from what a machine with a GPU wrote (results.json of `./dev gpu`).

usage: gpu_table.py RESULTS.JSON [DOCUMENT]

Replaces what is between the two marks of the document; without one it prints the text. What is missing, was skipped or failed is named
as such, with its reason; nothing is left out.
"""
import json
import pathlib
import statistics
import sys

BEGIN, END = "<!-- gpu table: begin -->", "<!-- gpu table: end -->"
ROUNDS = 2  # of run.sh, of what is measured beside PyTorch
BATCHES = (100, 4096)


class Broken(Exception):
    """A file that is not what run.sh writes."""


def checked(raw):
    """What run.sh wrote, or Broken with what it is not. Figures of a step are looked at where they are used."""
    if not isinstance(raw, dict) or not isinstance(raw.get("steps"), list):
        raise Broken("it has no list of steps")
    for name in ("seconds", "ok", "failed", "skipped"):
        if not isinstance(raw.get(name), (int, float)):
            raise Broken(f"\"{name}\" is no number")
    for step in raw["steps"]:
        if not isinstance(step, dict) or not all(isinstance(step.get(key), str) for key in ("step", "state", "reason")):
            raise Broken("a step has no name, state or reason")
        if step["state"] not in ("ok", "failed", "skipped"):
            raise Broken(f"step {step['step']} has the state \"{step['state']}\"")
        if not isinstance(step.get("figures"), (dict, type(None))):
            raise Broken(f"the figures of step {step['step']} are no object")
    return raw


class Results:
    def __init__(self, results):
        self.steps = {step["step"]: step for step in results["steps"]}

    def figures(self, *names):
        """Those of the steps of these names that went well."""
        return [self.steps[name]["figures"] for name in names if self.state(name) == "ok" and self.steps[name]["figures"]]

    def state(self, name):
        return self.steps[name]["state"] if name in self.steps else "missing"

    def failed(self, *names):
        """The first of these steps that failed, in words, or nothing: no other round's figures hide it."""
        return next((f"**failed**: {self.steps[name]['reason']}" for name in names if self.state(name) == "failed"), "")

    def missing(self, *names):
        """Why there is no figure of these steps."""
        if self.failed(*names):
            return self.failed(*names)
        for name in names:
            if self.state(name) == "skipped":
                return f"not measured: {self.steps[name]['reason']}"
        return "not measured"

    def line(self, name, words):
        """`words` of the figures, or why there are none."""
        found = self.figures(name)
        return words(found[0]) if found else self.missing(name)


def number(value, digits=0):
    return f"{value:,.{digits}f}"


def spread(values):
    return number(values[0]) if len(values) == 1 else f"{number(statistics.median(values))} ({number(min(values))}-{number(max(values))})"


def cell(value):
    """A message of another program may contain line ends and the mark between two cells."""
    return " ".join(str(value).split()).replace("|", "\\|")


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""]


def correctness(results):
    def passed(name):
        return {"ok": "ok", "failed": results.missing(name)}.get(results.state(name)) or results.missing(name)

    def diagnostics(name):
        return results.line(name, lambda figures: f"ok, {len(figures['figures'])} figures")

    def sanitizer(name):
        return "ok, nothing found" if results.state(name) == "ok" else results.missing(name)

    return ["**Right results**", "", *table(["check", ""], [
        ["bits of every launch against the host's (gpu_parity)", diagnostics("parity")],
        ["graph against single launches, run against run", diagnostics("replay")],
        ["50 steps in float64 against the CPU, to 1e-9", diagnostics("train")],
        ["an epoch in float64: accuracy on GPU and CPU", passed("device-train")],
        *([f"compute-sanitizer, {tool}", sanitizer(tool)] for tool in ("memcheck", "racecheck", "initcheck", "synccheck")),
        ["health: matrix products, memory, NVML", results.line("health", health_text)],
        ["weights of two ranks over NCCL against TCP", passed("nccl")],
        ["two emulated nodes, NCCL", results.line("nodes", lambda figures: f"ok, over {figures['way']}")]])]


def health_text(figures):
    rank = figures["ranks"][0]
    return (f"ok: {number(rank['products'])} equal products at {number(rank['gflops'])} GFLOP/s, "
            f"{number(rank['memory_bytes'] / 2**30, 1)} GiB written and read")


def images(results):
    rows = []
    ours = {}
    for batch in BATCHES:
        for dtype in ("float32", "bfloat16"):
            names = [f"images-{batch}-{dtype}-{turn}" for turn in range(1, ROUNDS + 1)]
            rates = [] if results.failed(*names) else [figures["images_per_second"] for figures in results.figures(*names)]
            ours[batch, dtype] = statistics.median(rates) if rates else None
            rows.append([f"train, {dtype}", batch, spread(rates) if rates else results.missing(*names), ""])
        names = [f"torch-{batch}-{turn}" for turn in range(1, ROUNDS + 1)]
        found = [] if results.failed(*names) else results.figures(*names)
        for way in ("DDP, step by step", "CUDA graph"):
            for tf32 in (False, True):
                rates = [row["images_per_second"] for figures in found for row in figures["rows"]
                         if (row["way"], row["tf32"]) == (way, tf32)]
                ratio = f"{ours[batch, 'float32'] / statistics.median(rates):.2f}" if rates and ours[batch, "float32"] else ""
                version = found[0]["torch"] + ", " if found else ""
                rows.append([f"PyTorch {version}{way}, TF32 {'on' if tf32 else 'off'}", batch,
                             spread(rates) if rates else results.missing(*names), ratio])
    return ["**Images per second of a training**", "",
            f"The tutorial's ConvNet, synthetic data, one GPU; the sides take turns in {ROUNDS} rounds, medians (min-max). `train`: all that a "
            "training does between two progress lines: sampling, gathering the images, the step, the loss. PyTorch: the step and the loss; "
            "its images lie on the GPU as floats and are taken in their order. `train` in float32 never rounds to TF32. Ratio: `train` in "
            "float32 over that way.", "",
            *table(["training", "batch", "images/s", "ratio"], rows)]


def mlp(results):
    rows = []
    turns = range(1, ROUNDS + 1)
    peers = [f"torch-mlp-{turn}" for turn in turns]
    found = [] if results.failed(*peers) else results.figures(*peers)
    for numbers, tf32, bf16 in (("float32", False, False), ("tf32", True, False), ("bfloat16", True, True)):
        names = [f"mlp-{numbers}-{turn}" for turn in turns]
        ours = [] if results.failed(*names) else results.figures(*names)
        rates = [figures["images_per_second"] for figures in ours]
        by = f", {ours[0].get('products', 'own kernels')}" if ours else ""
        rows.append([f"train, {numbers}{by}", spread(rates) if rates else results.missing(*names), ""])
        for way in ("DDP, step by step", "CUDA graph"):
            theirs = [row["images_per_second"] for figures in found for row in figures["rows"]
                      if (row["way"], row["tf32"], row["bf16"]) == (way, tf32, bf16)]
            ratio = f"{statistics.median(rates) / statistics.median(theirs):.2f}" if rates and theirs else ""
            version = found[0]["torch"] + ", " if found else ""
            rows.append([f"PyTorch {version}{way}, {numbers}", spread(theirs) if theirs else results.missing(*peers), ratio])
    return ["**Images per second of an MLP of 2048 x 7, batch 4096**", "",
            "As above. PyTorch's bfloat16 is autocast. Ratio: `train` over that way with the same numbers.", "",
            *table(["training", "images/s", "ratio"], rows)]


def costs(results):
    def row(name, words, digits=1):
        def value(figures):
            values = {figure["name"]: figure["figure"] for figure in figures["figures"]}
            return number(values[name], digits) if name in values else "not measured"
        return [words, results.line("costs", value)]

    speed = results.figures("speed")
    return ["**The device**", "", *table(["", ""], [
        row("copy on the device: GB/s read and written", "copy on the device, GB/s read and written"),
        row("graph of 1 launch: us each", "a graph of 1 launch, us each, back to back", 2),
        row("graph of 14 launches: us each", "a graph of 14 launches, us each, back to back", 2),
        row("14 launches one by one: us", "14 launches one by one, us", 2),
        *([figure["name"], number(figure["figure"])] for figures in speed for figure in figures["figures"]),
        *([] if speed else [["steps alone, images/s", results.missing("speed")]])])]


def kernels(results):
    rows = []
    for batch in BATCHES:
        found = results.figures(f"ncu-{batch}")
        rows += [[batch, f"`{one['name'].removeprefix('run_body<').removesuffix('>(Args)')}`", one["launches"], number(one["us"], 2)]
                 for figures in found for one in figures["kernels"]]
        if not found:
            rows.append([batch, results.missing(f"ncu-{batch}"), "", ""])
    return ["**Kernels of a ConvNet step**", "", "Seen by ncu, at the clocks that the GPU chose.", "",
            *table(["batch", "kernel", "launches", "us each"], rows)]


def sums(results):
    rows = []
    peers = {row["bytes"]: row for figures in results.figures("nccl-tests") for row in figures["rows"]}
    for ranks in (2, 4):
        found = results.figures(f"bench-{ranks}")
        if not found:
            rows.append([ranks, "", results.missing(f"bench-{ranks}"), "", "", ""])
        for row in found[0]["rows"] if found else []:
            peer = peers.get(row["bytes"]) if ranks == 2 else None
            ratio = f"{peer['mean_us'] / row['mean_us']:.2f}" if peer else ""
            wrong = "not compared" if row["wrong"] is None else row["wrong"]
            rows.append([ranks, number(row["bytes"]), number(row["mean_us"], 1), wrong,
                         number(peer["mean_us"], 1) if peer else "", ratio])
    note = "" if peers else f"nccl-tests beside it: {results.missing('nccl-tests')}."
    return ["**All-reduce over NCCL**", "",
            "float32 in place. Where there are fewer GPUs than ranks these take turns on one: such times say nothing of NCCL's speed; the ratio "
            "to nccl-tests, which met in the same way over the same library, does.", "",
            *table(["ranks", "bytes", "us", "wrong elements", "nccl-tests, us", "busbw over nccl-tests'"], rows), *([note, ""] if note else [])]


def losses(results):
    rows = []
    for name, words in (("KILL", "killed (SIGKILL)"), ("first", "killed in its first step"),
                        ("first-eager", "killed in its first step, all kernels loaded at the start"),
                        ("STOP", "stopped (SIGSTOP), --comm-timeout 5s")):
        rows.append([f"one of 2 ranks {words}: the other ended, ms", results.line(
            f"lost-{name}", lambda figures: f"{number(figures['ended_after_ms'])}: {figures['said']}")])
    for signal, words in (("KILL", "killed (SIGKILL)"), ("STOP", "stopped (SIGSTOP), --comm-timeout 5s")):
        rows.append([f"one of 3 ranks {words}, --on-peer-loss rejoin: first new step, ms", results.line(
            f"rejoin-{signal}", lambda figures: f"{number(figures['first_new_step_ms'])} (a step: {number(figures['step_ms'], 1)}); {figures['nccl']}")])
    return ["**Ranks that are lost over NCCL**", "", *table(["", ""], rows)]


def text_of(raw):
    results = Results(raw)
    machine = results.line("machine", lambda figures: f"{figures['gpus']}; {figures['kernel']}")
    head = (f"`./dev gpu`, {number(raw['seconds'])} s: {raw['ok']} steps ok, {raw['failed']} failed, {raw['skipped']} skipped. "
            f"Machine: {machine}; ddplaunch {raw.get('commit', 'of an unknown commit')}.")
    return "\n".join([head, "", *correctness(results), *images(results), *mlp(results), *costs(results), *kernels(results), *sums(results), *losses(results)]).rstrip() + "\n"


def replaced(document, text):
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"gpu_table.py: the document has no lines \"{BEGIN}\" and \"{END}\"")
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"


def read_results(path):
    try:
        return checked(json.loads(pathlib.Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise SystemExit(f"gpu_table.py: {path} cannot be read: {error.strerror}") from error
    except (Broken, ValueError) as error:  # ValueError: no JSON, or no UTF-8
        raise SystemExit(f"gpu_table.py: {path} is not what run.sh writes: {error}") from error


def main():
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: gpu_table.py RESULTS.JSON [DOCUMENT]")
    raw = read_results(sys.argv[1])
    try:
        text = text_of(raw)
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise SystemExit(f"gpu_table.py: {sys.argv[1]} has other figures than this table is made of: {error!r}") from error
    if len(sys.argv) < 3:
        print(text, end="")
        return
    document = pathlib.Path(sys.argv[2])
    try:
        document.write_bytes(replaced(document.read_text(encoding="utf-8"), text).encode())  # a text without UTF-8 empties no document
    except (OSError, ValueError) as error:
        raise SystemExit(f"gpu_table.py: {document} cannot be written anew: {error}") from error


if __name__ == "__main__":
    main()
