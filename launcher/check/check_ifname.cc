#include "launcher/check/check_ifname.h"

#include <algorithm>

namespace ddp::launcher {
namespace {

using rendezvous::Interface;

std::vector<std::string_view> listed(std::string_view value) {
  std::vector<std::string_view> names;
  for (std::size_t from = 0; from <= value.size();) {
    const std::size_t end = std::min(value.find(',', from), value.size());
    if (end > from) names.push_back(value.substr(from, end - from));
    from = end + 1;
  }
  return names;
}

}  // namespace

bool nccl_finds(const std::vector<Interface>& interfaces, std::string_view value) {
  const bool except = value.starts_with('^');
  if (except) value.remove_prefix(1);
  const bool whole = value.starts_with('=');
  if (whole) value.remove_prefix(1);
  const std::vector<std::string_view> names = listed(value);
  if (names.empty()) return true;  // as if it were not set
  return std::any_of(interfaces.begin(), interfaces.end(), [&](const Interface& interface) {
    const auto fits = [&](std::string_view name) {
      // "eth0:1" names a port as well.
      name = name.substr(0, name.find(':'));
      return whole ? interface.name == name : interface.name.starts_with(name);
    };
    return std::any_of(names.begin(), names.end(), fits) != except;
  });
}

std::string gloo_lacks(const std::vector<Interface>& interfaces, std::string_view value) {
  std::string lacking;
  for (const std::string_view name : listed(value)) {
    const auto is_it = [&](const Interface& interface) { return interface.name == name; };
    if (std::any_of(interfaces.begin(), interfaces.end(), is_it)) continue;
    lacking += (lacking.empty() ? "" : ", ") + std::string(name);
  }
  return lacking;
}

}  // namespace ddp::launcher
