#include "launcher/report/short_lists.h"

#include <algorithm>

namespace ddp::launcher {

std::string host_list(const std::set<std::string>& hosts) {
  std::string text;
  constexpr std::size_t kHostsNamed = 4;
  std::size_t named = 0;
  for (const std::string& host : hosts) {
    if (named == kHostsNamed && hosts.size() > kHostsNamed + 1) {
      return text + " and " + std::to_string(hosts.size() - named) + " more hosts";
    }
    if (named > 0) text += named + 1 == hosts.size() ? " and " : ", ";
    text += host;
    ++named;
  }
  return text;
}

std::string rank_set(std::vector<int> ranks) {
  constexpr int kParts = 8;
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  int parts = 0;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1)
      ++last;
    if (parts == kParts) return text + ",…";
    if (parts++ > 0) text += ',';
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace ddp::launcher
