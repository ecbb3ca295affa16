#include "launcher/hang/hang_report.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/format_text.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/host_list.h"

namespace ddp::launcher {
namespace {

constexpr std::size_t kLines = 8;
}  // namespace

void HangReport::add(std::uint32_t rank, const std::string& host, const std::string& state) {
  if (!state.empty()) ranks_[rank] = RankState{host, state};
}

std::vector<HangReport::StateGroup> HangReport::groups() const {
  std::vector<StateGroup> groups;
  for (const auto& [number, rank] : ranks_) {
    const std::string& state = rank.state;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&state](const StateGroup& g) { return g.state == state; });
    if (group == groups.end()) group = groups.insert(groups.end(), StateGroup{state, {}, {}});
    group->ranks.push_back(static_cast<int>(number));
    const std::string& host = rank.host;
    if (std::find(group->hosts.begin(), group->hosts.end(), host) == group->hosts.end())
      group->hosts.push_back(host);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const StateGroup& a, const StateGroup& b) { return a.ranks.size() < b.ranks.size(); });
  return groups;
}

void HangReport::add_stacks(std::uint32_t rank, const std::string& text) {
  // gdb prints the constructor's name, py-spy that of the frame above it.
  if (text.find("c10d::TCPStore::TCPStore(") != std::string::npos ||
      text.find("_create_c10d_store (") != std::string::npos)
    store_clients_.push_back(static_cast<int>(rank));
}

std::string HangReport::hint() const {
  if (store_clients_.empty()) return {};
  return format_ranks(store_clients_) + (store_clients_.size() == 1 ? " is" : " are") +
         " still connecting to a store. If its port is not MASTER_PORT, no process serves it "
         "while "
         "TORCHELASTIC_USE_AGENT_STORE is True: try --store worker (docs/users/store.md)";
}

std::vector<std::string> HangReport::lines() const {
  std::vector<std::string> lines;
  const auto all = groups();
  std::size_t ranks_left = ranks_.size();
  for (const StateGroup& group : all) {
    if (lines.size() + 1 == kLines && all.size() > kLines) {
      lines.push_back(std::to_string(ranks_left) + " more ranks in other states");
      break;
    }
    lines.push_back(format_ranks(group.ranks) + " on " + host_list(group.hosts) + ": " + group.state);
    ranks_left -= group.ranks.size();
  }
  return lines;
}

std::vector<std::uint32_t> HangReport::behind() const {
  std::uint64_t most = 0;
  for (const auto& [rank, step] : steps_)
    most = std::max(most, step);
  std::vector<std::uint32_t> behind;
  for (const auto& [rank, step] : steps_)
    if (step < most) behind.push_back(rank);
  return behind;
}

/// ": rank 3 is behind: the last reported step is 11, that of others 12"; empty if no rank is behind.
std::string HangReport::behind_text() const {
  const std::vector<std::uint32_t> ranks = behind();
  if (ranks.empty()) return {};
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t most = 0;
  for (const auto& [rank, step] : steps_) {
    least = std::min(least, step);
    most = std::max(most, step);
  }
  return ": " + format_ranks({ranks.begin(), ranks.end()}) + (ranks.size() == 1 ? " is" : " are") +
         " behind: the last reported step is " + std::to_string(least) + ", that of other ranks is " +
         std::to_string(most);
}

std::string HangReport::text(std::chrono::nanoseconds quiet) const {
  std::string text = steps_.empty() ? "no worker printed anything or used CPU time for "
                                    : "no worker reported a step or printed anything for ";
  text += format_elapsed(quiet) + behind_text();
  for (const std::string& line : lines())
    text += "\n" + line;
  return text;
}

}  // namespace ddp::launcher
