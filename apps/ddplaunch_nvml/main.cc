// ddplaunch-nvml: prints the facts of NVIDIA's management library about this machine's GPUs, one per line,
// for `ddplaunch check`. With --samples it prints every 5 s what the GPUs do, for the agent, until nobody
// reads it. It is a separate program because the agent is static and cannot load a library. If there is no
// driver it prints nothing about GPUs and exits 0. It changes nothing and needs no privileges.
#include <time.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "apps/ddplaunch_nvml/nvml_library.h"

namespace {

using namespace ddp;

constexpr int kPeriodMs = 5'000;
constexpr unsigned long long kNotAvailable = ~0ULL;

void print_processes(const Nvml& nvml, unsigned index, NvmlDevice device) {
  if (nvml.processes == nullptr) return;
  unsigned count = 0;
  (void)nvml.processes(device, &count, nullptr);  // returns the number of processes
  std::vector<NvmlProcess> list(count + 16);      // more may have started meanwhile
  count = static_cast<unsigned>(list.size());
  if (nvml.processes(device, &count, list.data()) != kNvmlSuccess) return;
  for (unsigned i = 0; i < count; ++i)
    std::printf("process\t%u\t%u\t%llu\n", index, list[i].pid,
                list[i].memory == kNotAvailable ? 0 : list[i].memory);
}

void print_gpus(const Nvml& nvml) {
  int failed = nvml.init();
  unsigned count = 0;
  if (failed == kNvmlSuccess) failed = nvml.count(&count);
  for (unsigned i = 0; i < count && failed == kNvmlSuccess; ++i) {
    NvmlDevice device = nullptr;
    char name[128] = "";
    NvmlMemory memory{};
    failed = nvml.device(i, &device);
    if (failed == kNvmlSuccess) failed = nvml.name(device, name, sizeof name);
    if (failed == kNvmlSuccess) failed = nvml.memory(device, &memory);
    if (failed == kNvmlSuccess) {
      std::printf("gpu\t%s\t%llu\t%llu\n", name, memory.total, memory.free);
      print_processes(nvml, i, device);
    }
  }
  if (failed != kNvmlSuccess) std::printf("trouble\tthe NVIDIA driver says: %s\n", nvml.error(failed));
}

void print_driver(const Nvml& nvml) {
  char driver[96] = "";
  if (nvml.driver != nullptr && nvml.driver(driver, sizeof driver) == kNvmlSuccess)
    std::printf("version\tdriver\t%s\n", driver);
  int cuda = 0;
  if (nvml.cuda != nullptr && nvml.cuda(&cuda) == kNvmlSuccess)
    std::printf("version\tCUDA\t%d.%d\n", cuda / 1000, cuda % 1000 / 10);
}

void print_nccl() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  int version = 0;
  const auto get_version = reinterpret_cast<int (*)(int*)>(::dlsym(library, "ncclGetVersion"));
  if (get_version == nullptr || get_version(&version) != 0) return;
  const int major = version >= 10000 ? 10000 : 1000;  // 22005 is 2.20.5; of the old versions, 2804 is 2.8.4
  std::printf("version\tNCCL\t%d.%d.%d\n", version / major, version % major / 100, version % 100);
}

long long now_ms() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000LL + time.tv_nsec / 1'000'000;
}

void sleep_ms(long long time) {
  const timespec wait{time / 1'000, time % 1'000 * 1'000'000};
  ::nanosleep(&wait, nullptr);
}

/// Collects the Xid errors of the GPUs while it waits.
class XidEvents {
 public:
  XidEvents(const Nvml& nvml, const std::vector<NvmlDevice>& devices) : nvml_(nvml) {
    if (nvml.make_events == nullptr || nvml.want_events == nullptr || nvml.wait_event == nullptr ||
        nvml.make_events(&set_) != kNvmlSuccess)
      return;
    for (const NvmlDevice device : devices)
      usable_ = nvml.want_events(device, kNvmlXidEvent, set_) == kNvmlSuccess || usable_;
  }
  void wait_until(long long due) {
    for (long long left = due - now_ms(); left > 0; left = due - now_ms()) {
      NvmlEvent event{};
      if (!usable_)
        sleep_ms(left);
      else if (nvml_.wait_event(set_, &event, static_cast<unsigned>(left)) != kNvmlSuccess)
        sleep_ms(due - now_ms() > 0 ? due - now_ms() : 0);  // the time is over, or events do not work
      else if (event.type == kNvmlXidEvent)
        last_[event.device] = event.data;
    }
  }
  unsigned long long last(NvmlDevice device) const {
    const auto found = last_.find(device);
    return found == last_.end() ? 0 : found->second;
  }

 private:
  const Nvml& nvml_;
  void* set_ = nullptr;
  bool usable_ = false;
  std::map<NvmlDevice, unsigned long long> last_;
};

void print_sample(const Nvml& nvml, unsigned index, NvmlDevice device, unsigned long long xid) {
  NvmlUtilization utilization{};
  NvmlMemory memory{};
  unsigned power = 0, temperature = 0, clock = 0;
  unsigned long long throttle = 0;
  // A GPU that does not know a value leaves it at 0.
  if (nvml.utilization != nullptr) (void)nvml.utilization(device, &utilization);
  (void)nvml.memory(device, &memory);
  if (nvml.power != nullptr) (void)nvml.power(device, &power);
  if (nvml.temperature != nullptr) (void)nvml.temperature(device, kNvmlTemperatureOfGpu, &temperature);
  if (nvml.clock != nullptr) (void)nvml.clock(device, kNvmlClockOfMultiprocessors, &clock);
  if (nvml.throttle != nullptr) (void)nvml.throttle(device, &throttle);
  std::printf("sample\t%u\t%u\t%llu\t%llu\t%u\t%u\t%u\t%llu\t%llu\n", index, utilization.gpu, memory.used,
              memory.total, power, temperature, clock, throttle, xid);
}

/// Returns when nobody reads the samples any more.
void print_samples(const Nvml& nvml) {
  unsigned count = 0;
  if (nvml.init() != kNvmlSuccess || nvml.count(&count) != kNvmlSuccess) return;
  std::vector<NvmlDevice> devices(count);
  for (unsigned i = 0; i < count; ++i)
    if (nvml.device(i, &devices[i]) != kNvmlSuccess) return;
  XidEvents xids(nvml, devices);
  for (long long due = now_ms();; due += kPeriodMs) {
    xids.wait_until(due);
    for (unsigned i = 0; i < count; ++i)
      print_sample(nvml, i, devices[i], xids.last(devices[i]));
    std::printf("end\n");
    if (std::fflush(stdout) != 0) return;
    if (due + kPeriodMs < now_ms()) due = now_ms() - kPeriodMs;  // the machine slept
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool samples = argc == 2 && std::strcmp(argv[1], "--samples") == 0;
  if (!samples) print_nccl();
  Nvml nvml{};
  if (!nvml.load()) return 0;  // no driver
  const bool is_usable = nvml.init != nullptr && nvml.count != nullptr && nvml.device != nullptr &&
                         nvml.name != nullptr && nvml.memory != nullptr && nvml.error != nullptr;
  if (samples) {
    if (is_usable) print_samples(nvml);
  } else if (is_usable) {
    print_gpus(nvml);
    print_driver(nvml);
  } else {
    std::printf("trouble\tlibnvidia-ml.so.1 is too old, it lacks a function\n");
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
