#include "launcher/report/host_list.h"

#include "base/text.h"

namespace ddp::launcher {

std::string host_list(const std::vector<std::string>& hosts) {
  constexpr std::size_t kNamed = 4;
  if (hosts.size() > kNamed + 1) return join_some(hosts, kNamed) + " hosts";
  if (hosts.size() < 2) return join(hosts, "");
  return join({hosts.begin(), hosts.end() - 1}, ", ") + " and " + hosts.back();
}

}  // namespace ddp::launcher
