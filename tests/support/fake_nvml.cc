// Emulates NVIDIA's management library for ddplaunch-nvml. FAKE_NVML_GPUS is the number of GPUs (2),
// FAKE_NVML_DRIVER the driver version, FAKE_NVML_PID a process on the last GPU, FAKE_NVML_ERROR the error of
// nvmlInit, FAKE_NVML_XID the number of an Xid error of the first GPU. GPU i is 40 + i % busy, at 60 + i °C,
// and throttled by its temperature (the last one). Each answer of a counter (PCIe replays, NVLink errors,
// remapped rows) is FAKE_NVML_ERRORS (0) higher than the one before. A GPU's place on the PCI bus is its
// number.
#include <time.h>

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

unsigned errors() {
  return static_cast<unsigned>(std::atoi(setting("FAKE_NVML_ERRORS", "0")));
}

struct GpuMemoryInfo {
  unsigned long long total, free, used;
};
struct GpuProcessInfo {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};

struct GpuEvent {
  void* device;
  unsigned long long type, data;
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
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, void** device) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(place, "%x:%x:", &domain, &bus) != 2 || bus >= gpus()) return 6;  // NVML_ERROR_NOT_FOUND
  return nvmlDeviceGetHandleByIndex_v2(bus, device);
}
int nvmlDeviceGetPcieReplayCounter(void*, unsigned* count) {
  static unsigned counter = 7;
  *count = counter += errors();
  return 0;
}
int nvmlDeviceGetNvLinkErrorCounter(void*, unsigned link, int counter, unsigned long long* count) {
  if (link >= 1 || counter != 0) return 3;  // NVML_ERROR_NOT_SUPPORTED
  static unsigned replays = 0;
  *count = replays += errors();
  return 0;
}
int nvmlDeviceGetRemappedRows(void*, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                              unsigned* failed) {
  static unsigned rows = 3;
  *corrected = rows += errors();
  *uncorrected = 1;
  *pending = *failed = 0;
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
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[0] = 39 + static_cast<unsigned>(reinterpret_cast<unsigned long>(device));
  rates[1] = 7;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 412'000;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) {
  *celsius = 59 + static_cast<unsigned>(reinterpret_cast<unsigned long>(device));
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1980;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = reinterpret_cast<unsigned long>(device) == gpus() ? 0x40 : 0;
  return 0;
}
int nvmlEventSetCreate(void** set) {
  static int one_set;
  *set = &one_set;
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long types, void*) {
  return types == 8 ? 0 : 3;  // NVML_ERROR_NOT_SUPPORTED
}
int nvmlEventSetWait_v2(void*, GpuEvent* event, unsigned milliseconds) {
  static bool sent = false;
  const int xid = std::atoi(setting("FAKE_NVML_XID", "0"));
  if (xid != 0 && !sent) {
    sent = true;
    *event = {reinterpret_cast<void*>(1UL), 8, static_cast<unsigned long long>(xid), 0, 0};
    return 0;
  }
  const timespec wait{milliseconds / 1'000, milliseconds % 1'000 * 1'000'000L};
  ::nanosleep(&wait, nullptr);
  return 10;  // NVML_ERROR_TIMEOUT
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
