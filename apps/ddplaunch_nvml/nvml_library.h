#pragma once

#include <dlfcn.h>

namespace ddp {

// These declarations are from nvml.h, and have been the same since driver 450 or earlier.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long memory;
  unsigned gpu_instance, compute_instance;
};
struct NvmlUtilization {
  unsigned gpu, memory;
};
struct NvmlEvent {
  NvmlDevice device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
inline constexpr int kNvmlSuccess = 0;
inline constexpr int kNvmlTemperatureOfGpu = 0;        // NVML_TEMPERATURE_GPU
inline constexpr int kNvmlClockOfMultiprocessors = 1;  // NVML_CLOCK_SM
inline constexpr int kNvmlCorrected = 0, kNvmlUncorrected = 1, kNvmlVolatile = 0;
inline constexpr unsigned kNvmlLinks = 18;  // NVML_NVLINK_MAX_LINKS
inline constexpr int kNvmlLinkErrors = 4;   // replays, recoveries, CRC errors of flits and of data
inline constexpr unsigned long long kNvmlXidEvent = 8;  // nvmlEventTypeXidCriticalError

/// NVIDIA's management library of the driver. A function that this driver lacks is null. All return an error
/// code, kNvmlSuccess if they worked; an old GPU does not know every value.
struct Nvml {
  int (*init)();
  int (*count)(unsigned*);
  int (*device)(unsigned, NvmlDevice*);
  int (*find)(const char*, NvmlDevice*);  ///< by its place on the PCI bus: "00000000:17:00.0"
  int (*name)(NvmlDevice, char*, unsigned);
  int (*memory)(NvmlDevice, NvmlMemory*);
  const char* (*error)(int);
  int (*driver)(char*, unsigned);
  int (*cuda)(int*);
  int (*processes)(NvmlDevice, unsigned*, NvmlProcess*);
  int (*utilization)(NvmlDevice, NvmlUtilization*);
  int (*power)(NvmlDevice, unsigned*);  ///< milliwatts
  int (*temperature)(NvmlDevice, int, unsigned*);
  int (*clock)(NvmlDevice, int, unsigned*);  ///< MHz
  int (*most_clock)(NvmlDevice, int, unsigned*);
  int (*throttle)(NvmlDevice, unsigned long long*);
  int (*ecc)(NvmlDevice, int, int, unsigned long long*);
  int (*pcie_replays)(NvmlDevice, unsigned*);
  int (*link_errors)(NvmlDevice, unsigned link, int counter, unsigned long long*);
  int (*remapped_rows)(NvmlDevice, unsigned* corrected, unsigned* uncorrected, unsigned* pending,
                       unsigned* failed);
  int (*make_events)(void**);
  int (*want_events)(NvmlDevice, unsigned long long, void*);
  int (*wait_event)(void*, NvmlEvent*, unsigned ms);

  /// Loads the driver's library, which stays loaded. False: there is no driver.
  bool load() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    const auto find_in = [library](const char* name, auto*& function) {
      function = reinterpret_cast<decltype(+function)>(::dlsym(library, name));
      return function != nullptr;
    };
    find_in("nvmlInit_v2", init);
    find_in("nvmlDeviceGetCount_v2", count);
    find_in("nvmlDeviceGetHandleByIndex_v2", device);
    find_in("nvmlDeviceGetHandleByPciBusId_v2", find);
    find_in("nvmlDeviceGetName", name);
    find_in("nvmlDeviceGetMemoryInfo", memory);
    find_in("nvmlErrorString", error);
    find_in("nvmlSystemGetDriverVersion", driver);
    find_in("nvmlSystemGetCudaDriverVersion_v2", cuda);
    if (!find_in("nvmlDeviceGetComputeRunningProcesses_v3", processes))
      find_in("nvmlDeviceGetComputeRunningProcesses_v2", processes);
    find_in("nvmlDeviceGetUtilizationRates", utilization);
    find_in("nvmlDeviceGetPowerUsage", power);
    find_in("nvmlDeviceGetTemperature", temperature);
    find_in("nvmlDeviceGetClockInfo", clock);
    find_in("nvmlDeviceGetMaxClockInfo", most_clock);
    find_in("nvmlDeviceGetCurrentClocksThrottleReasons", throttle);
    find_in("nvmlDeviceGetTotalEccErrors", ecc);
    find_in("nvmlDeviceGetPcieReplayCounter", pcie_replays);
    find_in("nvmlDeviceGetNvLinkErrorCounter", link_errors);
    find_in("nvmlDeviceGetRemappedRows", remapped_rows);
    find_in("nvmlEventSetCreate", make_events);
    find_in("nvmlDeviceRegisterEvents", want_events);
    find_in("nvmlEventSetWait_v2", wait_event);
    return true;
  }
};

}  // namespace ddp
