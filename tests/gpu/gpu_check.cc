// Checks the kernels on a GPU. The programs emulated_gpu_* use the fake GPU of tests/support/fake_cuda.cc.
// The argument is the name of a check. This file is part of three programs:
//
//   gpu_parity parity   Each launch of a step gives the bits of the host driver. Results of exp, log and pow
//                       may differ in their last places. The program is built with -fmad=false.
//   gpu_check  replay   Steps that are replayed as a graph give the bits of steps that are launched one by
//                       one. Two runs give the same bits.
//              train    A ConvNet trains like the CPU's: 50 steps in float64, 10 in float32 and in bfloat16.
//                       An MLP has the CPU's gradients.
//              speed    measures the images/s of whole steps
//   gpu_costs  costs    measures copies on the device, and launches of kernels and of graphs
//
// The program prints one JSON object. Exit codes: 0 all checks passed, 1 a check failed, 2 no such check, 77
// no GPU.

#include <cstdio>
#include <string>

#include "apps/train/gpu/cuda_runtime.h"
#include "tests/gpu/checks.h"

int main(int argc, char** argv) {
  using namespace ddp::train;
  const auto gpus = count_gpus();
  if (!gpus) {
    std::fprintf(stderr, "skipped: %s\n", gpus.error().text.c_str());
    return 77;
  }
  const std::string name = argc == 2 ? argv[1] : "";
  std::string names;
  for (const gpu::GpuCheck& check : gpu::all_checks()) {
    names += std::string(names.empty() ? "" : "|") + check.name;
    if (name != check.name) continue;
    gpu::CheckLog log;
    check.run(log);
    std::printf("%s\n", log.json(name).c_str());
    return log.all_good() ? 0 : 1;
  }
  std::fprintf(stderr, "usage: %s %s\n", argv[0], names.c_str());
  return 2;
}
