// Emulates NVIDIA's management library for ddplaunch-nvml. FAKE_NVML_GPUS is the number of GPUs (2),
// FAKE_NVML_DRIVER the driver version, FAKE_NVML_PID a process on the last GPU, FAKE_NVML_ERROR the error of
// nvmlInit.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

unsigned gpus() {
  return static_cast<unsigned>(std::atoi(setting("FAKE_NVML_GPUS", "2")));
}

struct GpuMemoryInfo {
  unsigned long long total, free, used;
};
struct GpuProcessInfo {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

extern "C" {

int nvmlInit_v2() {
  return std::atoi(setting("FAKE_NVML_ERROR", "0"));
}
const char* nvmlErrorString(int) {
  return "Driver/library version mismatch";
}
int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "%s", setting("FAKE_NVML_DRIVER", "550.54.15"));
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 12040;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = gpus();
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<unsigned long>(index + 1));
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "FakeGPU 80GB");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, GpuMemoryInfo* memory) {
  memory->total = 80ULL << 30;
  memory->free = 79ULL << 30;
  memory->used = memory->total - memory->free;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, GpuProcessInfo* list) {
  const unsigned pid = static_cast<unsigned>(std::atoi(setting("FAKE_NVML_PID", "0")));
  const bool mine = pid != 0 && reinterpret_cast<unsigned long>(device) == gpus();
  const unsigned room = list == nullptr ? 0 : *count;
  *count = mine ? 1 : 0;
  if (!mine) return 0;
  if (room < 1) return 7;  // NVML_ERROR_INSUFFICIENT_SIZE
  std::memset(list, 0, sizeof *list);
  list[0].pid = pid;
  list[0].memory = 1ULL << 30;
  return 0;
}

}  // extern "C"
