#include "apps/train/health/health_nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>

#include "base/format_text.h"

namespace ddp::train {

namespace {

// Types and values of nvml.h.
using NvmlDevice = void*;
using NvmlEvents = void*;
constexpr int kNvmlSuccess = 0;
constexpr unsigned long long kXidCritical = 0x8;
constexpr int kSmClock = 1, kTemperatureOfGpu = 0, kVolatile = 0, kCorrected = 0, kUncorrected = 1;

template <class Function>
void load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
}

}  // namespace

struct NvmlMonitor::State {
  struct NvmlEvent {
    NvmlDevice device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
  };
  int (*init)() = nullptr;
  int (*find)(const char*, NvmlDevice*) = nullptr;
  int (*temperature)(NvmlDevice, int, unsigned*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*most_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*ecc)(NvmlDevice, int, int, unsigned long long*) = nullptr;
  int (*make_events)(NvmlEvents*) = nullptr;
  int (*register_events)(NvmlDevice, unsigned long long, NvmlEvents) = nullptr;
  int (*wait_event)(NvmlEvents, NvmlEvent*, unsigned) = nullptr;

  NvmlDevice device = nullptr;
  NvmlEvents events = nullptr;  ///< null: Xids are not reported
  HealthFigures seen;
  std::uint64_t corrected = 0, uncorrected = 0;

  void load_all(void* library) {
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlDeviceGetHandleByPciBusId_v2", find);
    load(library, "nvmlDeviceGetTemperature", temperature);
    load(library, "nvmlDeviceGetClockInfo", clock);
    load(library, "nvmlDeviceGetMaxClockInfo", most_clock);
    load(library, "nvmlDeviceGetCurrentClocksThrottleReasons", reasons);
    load(library, "nvmlDeviceGetTotalEccErrors", ecc);
    load(library, "nvmlEventSetCreate", make_events);
    load(library, "nvmlDeviceRegisterEvents", register_events);
    load(library, "nvmlEventSetWait_v2", wait_event);
  }

  std::uint64_t count_ecc(int kind) const {
    unsigned long long count = 0;
    return ecc != nullptr && ecc(device, kind, kVolatile, &count) == kNvmlSuccess ? count : 0;
  }

  void take_xids() {
    NvmlEvent event{};
    while (events != nullptr && wait_event(events, &event, 0) == kNvmlSuccess) {
      ++seen.xids;
      seen.last_xid = event.data;
    }
  }
};

NvmlMonitor::NvmlMonitor() = default;
NvmlMonitor::~NvmlMonitor() = default;
NvmlMonitor::NvmlMonitor(NvmlMonitor&&) noexcept = default;
NvmlMonitor& NvmlMonitor::operator=(NvmlMonitor&&) noexcept = default;

NvmlMonitor NvmlMonitor::open(int domain, int bus, int device) {
  NvmlMonitor monitor;
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded, as CUDA's do
  if (library == nullptr) return monitor;
  auto state = std::make_unique<State>();
  state->load_all(library);
  const std::string place = format_text("%08x:%02x:%02x.0", static_cast<unsigned>(domain),
                                        static_cast<unsigned>(bus), static_cast<unsigned>(device));
  if (state->init == nullptr || state->find == nullptr || state->init() != kNvmlSuccess ||
      state->find(place.c_str(), &state->device) != kNvmlSuccess)
    return monitor;
  monitor.state_ = std::move(state);
  return monitor;
}

void NvmlMonitor::begin() {
  if (!state_) return;
  State& s = *state_;
  s.corrected = s.count_ecc(kCorrected);
  s.uncorrected = s.count_ecc(kUncorrected);
  if (s.make_events == nullptr || s.register_events == nullptr || s.wait_event == nullptr) return;
  NvmlEvents events = nullptr;
  if (s.make_events(&events) == kNvmlSuccess &&
      s.register_events(s.device, kXidCritical, events) == kNvmlSuccess)
    s.events = events;
}

void NvmlMonitor::sample() {
  if (!state_) return;
  State& s = *state_;
  unsigned value = 0;
  if (s.temperature != nullptr && s.temperature(s.device, kTemperatureOfGpu, &value) == kNvmlSuccess)
    s.seen.temperature = std::max<std::uint64_t>(s.seen.temperature, value);
  if (s.clock != nullptr && s.clock(s.device, kSmClock, &value) == kNvmlSuccess)
    s.seen.clock = s.seen.clock == 0 ? value : std::min<std::uint64_t>(s.seen.clock, value);
  if (s.most_clock != nullptr && s.most_clock(s.device, kSmClock, &value) == kNvmlSuccess)
    s.seen.most_clock = value;
  unsigned long long reasons = 0;
  if (s.reasons != nullptr && s.reasons(s.device, &reasons) == kNvmlSuccess)
    s.seen.throttle_reasons |= reasons;
  s.take_xids();
}

void NvmlMonitor::end(HealthFigures& figures) {
  if (!state_) return;
  State& s = *state_;
  s.take_xids();
  const auto more = [](std::uint64_t now, std::uint64_t before) { return now > before ? now - before : 0; };
  figures.ecc_corrected = more(s.count_ecc(kCorrected), s.corrected);
  figures.ecc_uncorrected = more(s.count_ecc(kUncorrected), s.uncorrected);
  figures.temperature = s.seen.temperature;
  figures.clock = s.seen.clock;
  figures.most_clock = s.seen.most_clock;
  figures.throttle_reasons = s.seen.throttle_reasons;
  figures.xids = s.seen.xids;
  figures.last_xid = s.seen.last_xid;
}

}  // namespace ddp::train
