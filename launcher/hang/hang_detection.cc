// ActivityTracker runs on each node. HangReport, HangDetector and HangInvestigation run on the master.
#include "launcher/hang/hang_detection.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/result.h"
#include "base/text.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/host_texts.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortestPeriod{200};
constexpr milliseconds kLongestPeriod{5000};
/// The kernel counts in clock ticks of 10 ms, so less than three of them may be rounding.
constexpr milliseconds kSmallestBurst{30};
constexpr milliseconds kLargestBurst{100};
constexpr std::size_t kPacemakers = 16;
constexpr std::chrono::seconds kLongestBetweenWholes{60};
/// A sample that is later than two periods plus this was not delayed by load.
constexpr std::chrono::seconds kSampleDelayed{1};

}  // namespace

ActivityTracker::ActivityTracker(milliseconds timeout, Time now)
    : timeout_(timeout),
      burst_(std::clamp<Time>(Time(timeout) / kIdleShare, kSmallestBurst, kLargestBurst)),
      last_whole_(now),
      last_activity_(now),
      last_sample_(now) {}

milliseconds ActivityTracker::period(milliseconds timeout) {
  return std::clamp(timeout / 8, kShortestPeriod, kLongestPeriod);
}

void ActivityTracker::record_activity(Time now) {
  last_activity_ = std::max(last_activity_, now);
}

void ActivityTracker::begin_sample(Time now) {
  const auto expected = period(std::chrono::duration_cast<milliseconds>(timeout_));
  // The agent itself did not run: it was stopped, or the machine slept. Then the workers did not run either,
  // which is no hang.
  if (now - last_sample_ > 2 * expected + kSampleDelayed) record_activity(now);
  last_sample_ = now;
}

bool ActivityTracker::fill(Meter& meter, const ProcessTime& process, Time now) const {
  meter.level += std::max(process.cpu - meter.cpu, Time(0));
  // A leaky bucket: a process that only polls uses a little CPU for ever, and leaks as much as it fills.
  meter.level = std::max(meter.level - (now - meter.seen) / kIdleShare, Time(0));
  meter.cpu = process.cpu;
  meter.seen = now;
  if (meter.level < burst_) return false;
  meter.level = Time(0);
  return true;
}

bool ActivityTracker::add_sample(std::span<const ProcessTime> processes, bool whole, Time now) {
  std::vector<pid_t> at_work;
  std::set<pid_t> found;
  bool traced = false;
  const std::uint64_t newest = newest_;
  for (const ProcessTime& process : processes) {
    auto meter = meters_.find(process.pid);
    if (meter == meters_.end() || meter->second.started != process.started) {
      if (!whole && !process.leader) continue;
      // All CPU time of a new process counts, over the time since the last whole sample, its earliest
      // possible start. An older one has left the trees and come back: what it used before is not activity of
      // now.
      const bool is_new = process.started >= newest;
      meter = meters_
                  .insert_or_assign(process.pid, Meter{process.started, is_new ? last_whole_ : now,
                                                       is_new ? Time(0) : process.cpu, Time(0)})
                  .first;
    }
    found.insert(process.pid);
    if (whole) newest_ = std::max(newest_, process.started);
    if (fill(meter->second, process, now)) at_work.push_back(process.pid);
    traced = traced || process.traced;
  }
  if (whole) {
    last_whole_ = now;
    sampled_whole_ = true;
    std::erase_if(meters_, [&found](const auto& entry) { return !found.contains(entry.first); });
    std::erase_if(pacemakers_, [this](pid_t pid) { return !meters_.contains(pid); });
    DDP_REQUIRE(meters_.size() <= found.size(), meters_.size(), found.size());
  }
  if (at_work.empty() && !traced) return false;
  // A few processes that work suffice as proof, so the next sample reads only them.
  at_work.resize(std::min(at_work.size(), kPacemakers));
  pacemakers_ = std::move(at_work);
  record_activity(now);
  return true;
}

bool ActivityTracker::whole_due(Time now) const {
  return !sampled_whole_ || now - last_whole_ >= std::min<Time>(timeout_ / 4, kLongestBetweenWholes);
}

std::optional<ActivityTracker::QuietChange> ActivityTracker::poll_change(Time now) {
  const bool quiet = now - last_activity_ >= timeout_ / 2;
  if (quiet == reported_quiet_) return std::nullopt;
  reported_quiet_ = quiet;
  return QuietChange{quiet, quiet ? last_activity_ : Time(0)};
}

namespace {

constexpr std::size_t kLines = 8;

/// The longest expected time of a message from a node to the master.
constexpr std::chrono::milliseconds kTravel{1000};
/// A limit shorter than kTravel, since messages that arrived while the master was stopped would be overlooked
/// otherwise.
constexpr std::chrono::milliseconds kOverslept{800};

std::vector<std::uint32_t> counts(const std::vector<HangInvestigation::NodeShare>& nodes) {
  std::vector<std::uint32_t> counts;
  for (const HangInvestigation::NodeShare& node : nodes)
    counts.push_back(node.ranks);
  return counts;
}

}  // namespace

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
  // The rarest state first: the rank that does something else than the others is the one to look at.
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

HangDetector::HangDetector(std::chrono::milliseconds timeout, std::vector<std::uint32_t> ranks, Time now)
    : timeout_(timeout), margin_(ActivityTracker::period(timeout) + kTravel), last_activity_(now) {
  DDP_REQUIRE(timeout > Time(0), timeout.count());
  for (const std::uint32_t count : ranks)
    nodes_.push_back({count, false});
}

void HangDetector::quiet(std::size_t node, Time since) {
  if (node >= nodes_.size()) return;
  nodes_[node].quiet = true;
  last_activity_ = std::max(last_activity_, since);
}

void HangDetector::rank_ended(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  --nodes_[node].ranks;
  last_activity_ = std::max(last_activity_, now);
}

void HangDetector::node_gone(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  nodes_[node].ranks = 0;
  last_activity_ = std::max(last_activity_, now);
}

std::optional<HangDetector::Time> HangDetector::deadline() const {
  bool any = false;
  for (const Node& node : nodes_) {
    if (node.ranks == 0) continue;
    if (!node.quiet) return std::nullopt;
    any = true;
  }
  if (!any || timeout_ == Time(0)) return std::nullopt;
  return last_activity_ + timeout_ + margin_;
}

bool HangDetector::hangs(Time now) {
  const auto due = deadline();
  if (!due || now < *due) return false;
  // A late look means that the master slept, and messages about activity may still wait in its sockets. They
  // get the whole time again.
  if (now - *due <= kOverslept) return true;
  last_activity_ = now;
  return false;
}

HangInvestigation::HangInvestigation(std::chrono::milliseconds timeout, std::vector<NodeShare> nodes,
                                     Time now)
    : nodes_(std::move(nodes)) {
  if (timeout.count() > 0) detector_ = HangDetector(timeout, counts(nodes_), now);
}

std::vector<std::size_t> HangInvestigation::begin(const std::set<std::uint32_t>& ended, Time now) {
  DDP_REQUIRE(!inspecting(), asked_.size());
  inspect_due_ = now + kInspectTime + kInspectSlack;
  last_activity_ = detector_.last_activity();
  quiet_for_ = now - last_activity_;
  report_ = HangReport();
  asked_.clear();
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!detector_.has_ranks(i)) continue;
    asked_.insert(i);
    for (std::uint32_t local = 0; local < nodes_[i].ranks; ++local) {
      const std::uint32_t rank = nodes_[i].first_rank + local;
      if (ended.count(rank) == 0) report_.expect(rank, nodes_[i].host);
    }
  }
  return {asked_.begin(), asked_.end()};
}

void HangInvestigation::answer(std::size_t node, const rendezvous::Inspection& inspection) {
  DDP_REQUIRE(inspecting() && node < nodes_.size(), node, nodes_.size());
  if (inspection.last) {
    asked_.erase(node);
  } else {
    report_.add(inspection.rank, nodes_[node].host, inspection.state);
    report_.add_stacks(inspection.rank, inspection.text);
    if (inspection.steps) report_.add_step(inspection.rank, inspection.step);
  }
}

std::string HangInvestigation::conclude(const std::string& files) {
  DDP_REQUIRE(inspecting(), asked_.size());
  inspect_due_.reset();
  hung_ = report_.behind();
  // Only a rank that alone is behind is killed at once. Of several, some may wait for another one, and the
  // revoke shows which of them answer.
  if (hung_.size() > 1) hung_.clear();
  std::string text =
      "the job hung: " + report_.text(quiet_for_) + "\nstacks and state of each rank: " + files;
  if (const std::string hint = report_.hint(); !hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace ddp::launcher
