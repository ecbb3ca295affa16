#include "launcher/agent_core/machine_text.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST_CASE("the lines of ddplaunch-nvml") {
  const GpuFacts facts = read_nvml_lines(
      "version\tNCCL\t2.20.5\n"
      "gpu\tNVIDIA H100\t85899345920\t1024\n"
      "process\t0\t4711\t2048\n"
      "gpu\tNVIDIA H100\t85899345920\t85899345920\n"
      "version\tdriver\t550.54 \r\n"
      "something\tof a later release\n");
  REQUIRE(facts.gpus.size() == 2);
  CHECK(facts.gpus[0].name == "NVIDIA H100");
  CHECK(facts.gpus[0].memory == 85'899'345'920);
  CHECK(facts.gpus[0].memory_free == 1024);
  REQUIRE(facts.processes.size() == 1);
  CHECK(facts.processes[0].pid == 4711);
  CHECK(facts.processes[0].memory == 2048);
  CHECK(facts.versions == rendezvous::Pairs{{"NCCL", "2.20.5"}, {"driver", "550.54"}});
  CHECK(facts.trouble.empty());
  CHECK(read_nvml_lines("trouble\tthe driver is gone\n").trouble == "the driver is gone");
  CHECK(read_nvml_lines("").gpus.empty());
}

TEST_CASE("malformed lines are skipped") {
  const GpuFacts facts = read_nvml_lines("gpu\tA\nprocess\t9\t1\t1\nprocess\tx\ty\tz\n\n\t\t\t\ngpu\n");
  CHECK(facts.gpus.empty());
  CHECK(facts.processes.empty());
}

TEST_CASE("memory that is not known counts as 0, and a process needs a known GPU") {
  const GpuFacts nvml = read_nvml_lines("gpu\tA\t?\t?\nprocess\t0\t7\t?\nprocess\t1\t8\t1\n");
  REQUIRE(nvml.gpus.size() == 1);
  CHECK(nvml.gpus[0].memory == 0);
  CHECK(nvml.gpus[0].memory_free == 0);
  REQUIRE(nvml.processes.size() == 1);
  CHECK(nvml.processes[0].memory == 0);
  const GpuFacts smi = read_smi("0, GPU-aa, A, [N/A], [N/A], 535\n", "");
  REQUIRE(smi.gpus.size() == 1);
  CHECK(smi.gpus[0].memory == 0);
  CHECK(smi.gpus[0].memory_free == 0);
}

TEST_CASE("a broken driver's list of GPUs ends at 1024") {
  std::string nvml;
  std::string smi;
  for (int i = 0; i < 1025; ++i) {
    nvml += "gpu\tA\t1\t1\n";
    smi += std::to_string(i) + ", GPU, A, 1, 1, 535\n";
  }
  CHECK(read_nvml_lines(nvml).gpus.size() == 1024);
  CHECK(read_smi(smi, "").gpus.size() == 1024);
}

TEST_CASE("nvidia-smi's tables") {
  const GpuFacts facts = read_smi(
      "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960, 40000, 535.104.05\n"
      "1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960, 10, 535.104.05\n",
      "GPU-bb, 123, 39000\nGPU-bb, 124, [N/A]\nGPU-zz, 125, 1\n");
  REQUIRE(facts.gpus.size() == 2);
  CHECK(facts.gpus[1].name == "NVIDIA A100-SXM4-40GB");
  CHECK(facts.gpus[1].memory == 40'960 * kMiB);
  CHECK(facts.gpus[1].memory_free == 10 * kMiB);
  CHECK(facts.versions == rendezvous::Pairs{{"driver", "535.104.05"}});
  REQUIRE(facts.processes.size() == 2);
  CHECK(facts.processes[0].gpu == 1);
  CHECK(facts.processes[1].memory == 0);
  CHECK(read_smi("NVIDIA-SMI has failed because it couldn't communicate with the driver\n", "").gpus.empty());
}

}  // namespace
}  // namespace ddp::launcher
