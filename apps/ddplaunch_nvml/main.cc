// ddplaunch-nvml: prints the facts of NVIDIA's management library about this machine's GPUs, one per line,
// for `ddplaunch check`. It is a separate program because the agent is static and cannot load a library. If
// there is no driver it prints nothing about GPUs and exits 0. It changes nothing and needs no privileges.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <vector>

namespace {

// These declarations are from nvml.h, and have been the same since driver 450 or earlier.
using Device = void*;
struct GpuMemoryInfo {
  unsigned long long total, free, used;
};
struct GpuProcessInfo {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};
constexpr int kSuccess = 0;
constexpr unsigned long long kNotAvailable = ~0ULL;

template <class Function>
bool load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

struct Nvml {
  int (*init)();
  int (*count)(unsigned*);
  int (*device)(unsigned, Device*);
  int (*name)(Device, char*, unsigned);
  int (*memory)(Device, GpuMemoryInfo*);
  const char* (*error)(int);
  int (*driver)(char*, unsigned);
  int (*cuda)(int*);
  int (*processes)(Device, unsigned*, GpuProcessInfo*);

  bool open(void* library) {
    load(library, "nvmlSystemGetDriverVersion", driver);
    load(library, "nvmlSystemGetCudaDriverVersion_v2", cuda);
    if (!load(library, "nvmlDeviceGetComputeRunningProcesses_v3", processes))
      load(library, "nvmlDeviceGetComputeRunningProcesses_v2", processes);
    return load(library, "nvmlInit_v2", init) && load(library, "nvmlDeviceGetCount_v2", count) &&
           load(library, "nvmlDeviceGetHandleByIndex_v2", device) &&
           load(library, "nvmlDeviceGetName", name) && load(library, "nvmlDeviceGetMemoryInfo", memory) &&
           load(library, "nvmlErrorString", error);
  }
};

void print_processes(const Nvml& nvml, unsigned index, Device device) {
  if (nvml.processes == nullptr) return;
  unsigned count = 0;
  (void)nvml.processes(device, &count, nullptr);  // returns the number of processes
  std::vector<GpuProcessInfo> list(count + 16);   // more may have started meanwhile
  count = static_cast<unsigned>(list.size());
  if (nvml.processes(device, &count, list.data()) != kSuccess) return;
  for (unsigned i = 0; i < count; ++i)
    std::printf("process\t%u\t%u\t%llu\n", index, list[i].pid,
                list[i].memory == kNotAvailable ? 0 : list[i].memory);
}

void print_gpus(const Nvml& nvml) {
  int failed = nvml.init();
  unsigned count = 0;
  if (failed == kSuccess) failed = nvml.count(&count);
  for (unsigned i = 0; i < count && failed == kSuccess; ++i) {
    Device device = nullptr;
    char name[128] = "";
    GpuMemoryInfo memory{};
    failed = nvml.device(i, &device);
    if (failed == kSuccess) failed = nvml.name(device, name, sizeof name);
    if (failed == kSuccess) failed = nvml.memory(device, &memory);
    if (failed == kSuccess) {
      std::printf("gpu\t%s\t%llu\t%llu\n", name, memory.total, memory.free);
      print_processes(nvml, i, device);
    }
  }
  if (failed != kSuccess) std::printf("trouble\tthe NVIDIA driver says: %s\n", nvml.error(failed));
}

void print_driver(const Nvml& nvml) {
  char driver[96] = "";
  if (nvml.driver != nullptr && nvml.driver(driver, sizeof driver) == kSuccess)
    std::printf("version\tdriver\t%s\n", driver);
  int cuda = 0;
  if (nvml.cuda != nullptr && nvml.cuda(&cuda) == kSuccess)
    std::printf("version\tCUDA\t%d.%d\n", cuda / 1000, cuda % 1000 / 10);
}

void print_nccl() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  int (*get_version)(int*) = nullptr;
  int version = 0;
  if (!load(library, "ncclGetVersion", get_version) || get_version(&version) != kSuccess) return;
  const int major = version >= 10000 ? 10000 : 1000;  // 22005 is 2.20.5; of the old versions, 2804 is 2.8.4
  std::printf("version\tNCCL\t%d.%d.%d\n", version / major, version % major / 100, version % 100);
}

}  // namespace

int main() {
  print_nccl();
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;  // no driver
  Nvml nvml{};
  if (nvml.open(library)) {
    print_gpus(nvml);
    print_driver(nvml);
  } else {
    std::printf("trouble\tlibnvidia-ml.so.1 is too old, it lacks a function\n");
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
