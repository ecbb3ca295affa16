// Proves the GPU's kernels on a GPU; tests/support/fake_cuda.cc plays one where this program itself is
// tested. One argument, a check. Three programs are made of it:
//
//   gpu_parity parity      every launch of a step gives the bits that the host driver gives: built with
//   -fmad=false. With exp
//                          and log some last places are allowed
//   gpu_check  replay      steps replayed as a graph give the bits of steps launched one by one; two runs the
//   same bits
//              train       50 steps in float64 against the CPU's ConvNet, 10 in float32; an MLP
//              speed       images/s of whole steps
//   gpu_costs  costs       copies on the device, launches of kernels and of graphs
//
// Prints one JSON object. Exit code: 0; 1 a check failed; 77 there is no GPU; 2 no such check.

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
