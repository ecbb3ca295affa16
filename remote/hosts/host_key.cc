#include "remote/hosts/host_key.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/parse_text.h"
#include "remote/hosts/diagnostic.h"

namespace ddp::remote {
namespace {

using Key = HostKey::Key;

constexpr std::array kKeys = {
    HostKey{"slots", Key::kSlots, true},         HostKey{"port", Key::kPort, true},
    HostKey{"user", Key::kUser, true},           HostKey{"address", Key::kAddress, true},
    HostKey{"identity", Key::kIdentity, true},   HostKey{"chdir", Key::kChdir, true},
    HostKey{"gpus", Key::kGpus, true},           HostKey{"max_slots", Key::kMaxSlots, true},
    HostKey{"max-slots", Key::kMaxSlots, false}, HostKey{"slots_max", Key::kMaxSlots, false},
    HostKey{"slots-max", Key::kMaxSlots, false}, HostKey{"max_cpu", Key::kMaxSlots, false},
    HostKey{"max-cpu", Key::kMaxSlots, false},   HostKey{"cpu_max", Key::kMaxSlots, false},
    HostKey{"cpu-max", Key::kMaxSlots, false},   HostKey{"max_count", Key::kMaxSlots, false},
    HostKey{"max-count", Key::kMaxSlots, false}, HostKey{"count_max", Key::kMaxSlots, false},
    HostKey{"count-max", Key::kMaxSlots, false}, HostKey{"cpu", Key::kSlots, false},
    HostKey{"count", Key::kSlots, false},        HostKey{"username", Key::kUser, false},
    HostKey{"user_name", Key::kUser, false},     HostKey{"user-name", Key::kUser, false},
    HostKey{"jump", Key::kJump, true},           HostKey{"wrapper", Key::kWrapper, true},
    HostKey{"setup", Key::kSetup, true},
};

}  // namespace

const HostKey* find_host_key(std::string_view name) {
  const auto* const found =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const HostKey& known) { return known.name == name; });
  return found == kKeys.end() ? nullptr : found;
}

std::string unknown_host_key(std::string_view name) {
  if (name.empty()) return "a key is missing before =";
  std::vector<std::string_view> names;
  for (const HostKey& known : kKeys) {
    if (known.shown) names.push_back(known.name);
  }
  names.push_back("env:NAME");
  if (const std::string_view near = nearest_word(name, names); !near.empty())
    return "unknown key " + std::string(name) + "; did you mean " + std::string(near) + "?";
  std::string all;
  for (const std::string_view known : names)
    all += (all.empty() ? "" : ", ") + std::string(known);
  return "unknown key " + std::string(name) + "; known keys: " + all;
}

}  // namespace ddp::remote
