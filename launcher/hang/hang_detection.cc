// ActivityTracker runs on each node. HangReport, HangDetector and HangInvestigation run on the master.
#include "launcher/hang/hang_detection.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/result.h"
#include "base/text.h"
#include "launcher/hang/wait_state.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/host_texts.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortestPeriod{200};
constexpr milliseconds kLongestPeriod{3000};
/// The kernel counts in clock ticks of 10 ms, so less than three of them may be rounding.
constexpr milliseconds kSmallestBurst{30};
constexpr milliseconds kLargestBurst{100};
/// Reads and writes of files and pipes are work beyond these: an idle PyTorch worker with gloo moves under
/// 1 KiB/s, and a checkpoint that is slower than this is not written any more.
constexpr std::uint64_t kIdleBytes = 16u << 10;  ///< a second
constexpr std::uint64_t kLargestIo = 1u << 20;
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

bool ActivityTracker::fill_io(Meter& meter, const ProcessTime& process, Time now) {
  if (!process.io) return false;
  // What it moved before the first look is not activity of now.
  const std::uint64_t moved = meter.io && *process.io > *meter.io ? *process.io - *meter.io : 0;
  const auto seconds = std::chrono::duration_cast<std::chrono::duration<double>>(now - meter.io_seen).count();
  const auto leaked = static_cast<std::uint64_t>(seconds * static_cast<double>(kIdleBytes));
  meter.io_level += moved;
  meter.io_level -= std::min(meter.io_level, leaked);
  meter.io = process.io;
  meter.io_seen = now;
  if (meter.io_level < kLargestIo) return false;
  meter.io_level = 0;
  return true;
}

bool ActivityTracker::add_sample(std::span<const ProcessTime> processes, bool whole, Time now) {
  std::vector<pid_t> at_work;
  in_doubt_.clear();
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
                  .insert_or_assign(process.pid, Meter{process.started,
                                                       is_new ? last_whole_ : now,
                                                       is_new ? Time(0) : process.cpu,
                                                       Time(0),
                                                       {},
                                                       now,
                                                       0})
                  .first;
    }
    found.insert(process.pid);
    if (whole) newest_ = std::max(newest_, process.started);
    const bool computes = fill(meter->second, process, now);
    const bool moves = fill_io(meter->second, process, now);
    if (computes || moves) (process.waits ? in_doubt_ : at_work).push_back(process.pid);
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
  const bool quiet = is_quiet(now);
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

namespace {

using Json = nlohmann::json;

/// Ranks of a communicator that do the same, by what they do.
using RasGroups = std::map<std::string, std::vector<int>>;

constexpr int kRasDepth = 8;              ///< NCCL's answer has 7 levels
constexpr std::size_t kRasProcesses = 2;  ///< in a group of at most so many ranks their processes are named

/// Returns the member `key`, or an object without members.
const Json& member(const Json& object, const char* key) {
  static const Json kNone = Json::object();
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

std::string nccl_error(int result) {
  constexpr std::array kNames = {"no error",         "unhandled CUDA error", "system error", "internal error",
                                 "invalid argument", "invalid usage",        "remote error"};
  return result >= 0 && result < static_cast<int>(kNames.size()) ? kNames[static_cast<std::size_t>(result)]
                                                                 : "error " + std::to_string(result);
}

int small_number(const Json& value) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() < 1'000'000 ? value.get<int>() : -1;
}

/// What a rank that answered does; empty: it runs, and has no error.
std::string ras_state(const Json& status) {
  constexpr int kInProgress = 7;  // ncclInProgress
  const int begun = small_number(member(status, "init_state"));
  const int error = small_number(member(status, "async_error"));
  if (begun > 0 && begun != kInProgress) return "not initialized (" + nccl_error(begun) + ")";
  if (error > 0 && error != kInProgress) return "failed (" + nccl_error(error) + ")";
  if (member(status, "abort_flag") == true) return "aborted";
  if (member(status, "finalize_called") == true || member(status, "destroy_flag") == true) return "finalized";
  return begun == kInProgress ? "still initializing" : "";
}

/// Adds "; still initializing: rank 3 (process 77 on 10.0.0.5)" for each group.
void add_groups(const RasGroups& groups, const std::map<int, std::string>& processes, std::string& found) {
  for (const auto& [what, ranks] : groups) {
    if (what.empty()) continue;
    std::string who = format_ranks(ranks);
    for (std::size_t i = 0; ranks.size() <= kRasProcesses && i < ranks.size(); ++i) {
      const auto process = processes.find(ranks[i]);
      if (process != processes.end()) who += " (" + process->second + ")";
    }
    found += "; " + what + ": " + who;
  }
}

/// Adds what differs between the ranks of a communicator.
void add_communicator(const Json& communicator, std::string& found) {
  RasGroups states;
  std::map<std::string, RasGroups> calls;  // by operation
  std::map<int, std::string> processes;
  const auto rank_of = [&processes](const Json& entry) {
    const int rank = small_number(member(entry, "rank"));
    const auto& host = member(entry, "host");
    const auto& pid = member(entry, "pid");
    if (rank >= 0 && host.is_string() && pid.is_number_unsigned())
      processes[rank] = "process " + std::to_string(pid.get<std::uint64_t>()) + " on " +
                        host.get_ref<const std::string&>().substr(0, 64);
    return rank;
  };
  for (const Json& entry : member(communicator, "ranks")) {
    const int rank = rank_of(entry);
    if (rank < 0) continue;
    states[ras_state(member(entry, "status"))].push_back(rank);
    for (const auto& [operation, count] : member(entry, "collective_counts").items())
      if (count.is_number_unsigned())
        calls[operation][operation.substr(0, 32) + " called " + counted(count.get<std::uint64_t>(), "time")]
            .push_back(rank);
  }
  for (const Json& entry : member(communicator, "missing_ranks")) {
    const Json& status = member(entry, "status");
    const int rank = rank_of(entry);
    if (rank < 0) continue;
    states[member(status, "considered_dead") == true ? "dead"
           : member(status, "unresponsive") == true  ? "no answer"
                                                     : "no member any more"]
        .push_back(rank);
  }
  // A program that finalizes a communicator and goes on leaves it in NCCL's table. Only if the calls of its
  // ranks differ may a finalize wait in it.
  if (states.size() == 1 && states.contains("finalized")) states.clear();
  std::string differences;
  add_groups(states, processes, differences);
  for (const auto& [operation, groups] : calls)
    if (groups.size() > 1) add_groups(groups, processes, differences);
  if (differences.empty()) return;
  const Json& hash = member(communicator, "hash");
  const Json& size = member(communicator, "size");
  found += (found.empty() ? "" : "; ") + std::string("communicator ") +
           (hash.is_string() ? hash.get_ref<const std::string&>().substr(0, 24) : "?");
  if (size.is_number_unsigned()) found += " of " + counted(size.get<std::uint64_t>(), "rank");
  found += ": " + differences.substr(2);
}

std::optional<std::string> json_findings(std::string_view text) {
  // Anybody on the machine may listen at that port: what lies too deep is not kept.
  const auto keep = [](int depth, Json::parse_event_t, const Json&) { return depth <= kRasDepth; };
  const Json answer = Json::parse(text, keep, false);
  if (!answer.is_object() || !member(answer, "communicators").is_array()) return std::nullopt;
  std::string found;
  for (const Json& communicator : answer["communicators"]) {
    if (found.size() >= kRasBytes) break;
    add_communicator(communicator, found);
  }
  return one_line(found.substr(0, kRasBytes));
}

}  // namespace

/// Titles of the text are underlined, and a section ends where the next title begins.
std::optional<std::string> ras_findings(std::string_view text) {
  if (text.starts_with('{')) return json_findings(text);
  std::string found;
  bool wanted = false;
  while (!text.empty() && found.size() < kRasBytes) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (text.starts_with("===")) {
      wanted = line == "Errors" || line == "Warnings";
      continue;
    }
    line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    if (!wanted || line.empty() || line.starts_with("===")) continue;
    found += (found.empty() ? "" : "; ") + std::string(line);
  }
  return one_line(found.substr(0, kRasBytes));
}

void HangReport::add_stacks(std::uint32_t rank, const std::string& text) {
  if (const std::size_t at = text.find(kRasFindings); at != std::string::npos && ras_.empty()) {
    const std::string_view rest = std::string_view(text).substr(at + kRasFindings.size());
    ras_ = one_line(std::string(rest.substr(0, std::min(rest.find('\n'), kRasBytes))));
  }
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

std::vector<int> HangReport::stopped() const {
  std::vector<int> stopped;
  for (const auto& [rank, state] : ranks_)
    if (state.state.ends_with(kStoppedText)) stopped.push_back(static_cast<int>(rank));
  return stopped.size() < ranks_.size() ? stopped : std::vector<int>();
}

std::string HangReport::behind_text() const {
  const std::vector<std::uint32_t> ranks = behind();
  if (ranks.empty()) return {};
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t most = 0;
  for (const auto& [rank, step] : steps_) {
    least = std::min(least, step);
    most = std::max(most, step);
  }
  return format_ranks({ranks.begin(), ranks.end()}) + (ranks.size() == 1 ? " is" : " are") +
         " behind: the last reported step is " + std::to_string(least) + ", that of other ranks is " +
         std::to_string(most);
}

std::string HangReport::activity(std::chrono::nanoseconds quiet) const {
  return (steps_.empty() ? "no worker printed anything or used CPU time for "
                         : "no worker reported a step or printed anything for ") +
         format_elapsed(quiet);
}

HangDetector::HangDetector(HangLimits limits, std::vector<std::uint32_t> ranks, Time now)
    : limits_(limits), margin_(ActivityTracker::period(limits.shortest()) + kTravel), last_activity_(now) {
  for (const std::uint32_t count : ranks)
    nodes_.push_back({count, false, false});
}

/// A new silence begins, with reports of its own.
void HangDetector::active_at(Time when) {
  if (when <= last_activity_) return;
  last_activity_ = when;
  stalls_ = 0;
}

void HangDetector::quiet(std::size_t node, Time since, bool by_steps) {
  if (node >= nodes_.size()) return;
  nodes_[node].quiet = true;
  nodes_[node].by_steps = by_steps;
  active_at(since);
}

void HangDetector::alive(std::size_t node) {
  if (node < nodes_.size()) nodes_[node].quiet = false;
}

void HangDetector::rank_ended(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  --nodes_[node].ranks;
  active_at(now);
}

void HangDetector::node_gone(std::size_t node, Time now) {
  if (node >= nodes_.size() || nodes_[node].ranks == 0) return;
  nodes_[node].ranks = 0;
  active_at(now);
}

bool HangDetector::all_quiet() const {
  const auto works = [](const Node& node) { return node.ranks > 0 && !node.quiet; };
  const auto counts = [](const Node& node) { return node.ranks > 0; };
  return std::ranges::none_of(nodes_, works) && std::ranges::any_of(nodes_, counts);
}

std::optional<HangDetector::Time> HangDetector::hang_due() const {
  const auto unknown = [](const Node& node) { return node.ranks > 0 && !node.by_steps; };
  if (limits_.hang.count() == 0 || (limits_.hang_by_steps && std::ranges::any_of(nodes_, unknown)))
    return std::nullopt;
  return last_activity_ + limits_.hang + margin_;
}

std::optional<HangDetector::Time> HangDetector::stall_due() const {
  if (limits_.stall.count() == 0 || stalls_ >= kStallReports.size()) return std::nullopt;
  return last_activity_ + limits_.stall * kStallReports.at(stalls_) + margin_;
}

std::optional<HangDetector::Time> HangDetector::deadline() const {
  if (!all_quiet()) return std::nullopt;
  const auto hang = hang_due();
  const auto stall = stall_due();
  return hang && stall ? std::min(hang, stall) : hang ? hang : stall;
}

HangDetector::Finding HangDetector::check(Time now) {
  const auto due = deadline();
  if (!due || now < *due) return Finding::kNone;
  // A late look means that the master slept, and messages about activity may still wait in its sockets. They
  // get the whole time again.
  if (now - std::max(*due, resumed_) > kOverslept) {
    active_at(now);
    return Finding::kNone;
  }
  // The end of the attempt comes with a report of its own.
  if (const auto hang = hang_due(); hang && now >= *hang) return Finding::kHang;
  ++stalls_;
  return Finding::kStall;
}

HangInvestigation::HangInvestigation(HangLimits limits, std::vector<NodeShare> nodes, Time now)
    : nodes_(std::move(nodes)), detector_(limits, counts(nodes_), now) {}

milliseconds HangInvestigation::inspect_time(Purpose purpose) {
  switch (purpose) {
    case Purpose::kAsked:
    case Purpose::kStall: return milliseconds(5000);
    case Purpose::kHang: return milliseconds(14'000);
    case Purpose::kFailed: return milliseconds(1000);
  }
  return {};
}

std::vector<std::size_t> HangInvestigation::begin(Purpose purpose, const std::set<std::uint32_t>& ended,
                                                  Time now, std::string cause) {
  DDP_REQUIRE(!inspecting(), asked_.size());
  purpose_ = purpose;
  // The others of a rank that failed are stopped after this time at the latest.
  inspect_due_ = now + inspect_time(purpose) + (purpose == Purpose::kFailed ? Time(0) : Time(kInspectSlack));
  verdict_due_.reset();
  if (purpose == Purpose::kHang) verdict_due_ = now + kVerdictTime;
  cause_ = std::move(cause);
  last_activity_ = cause_.empty() ? detector_.last_activity() : now;
  quiet_for_ = cause_.empty() && detector_.all_quiet() ? now - last_activity_ : Time(0);
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
  facts_missing_ = asked_;
  return {asked_.begin(), asked_.end()};
}

/// Debuggers stop the workers, so only a job that is about to be ended gets them.
rendezvous::Inspect HangInvestigation::order(std::uint32_t attempt) const {
  const bool found = purpose_ == Purpose::kStall || purpose_ == Purpose::kHang;
  return {attempt, static_cast<std::uint32_t>(inspect_time(purpose_).count()), found && cause_.empty(), found,
          purpose_ == Purpose::kHang};
}

void HangInvestigation::answer(std::size_t node, const rendezvous::Inspection& inspection) {
  DDP_REQUIRE(inspecting() && node < nodes_.size(), node, nodes_.size());
  if (inspection.last) {
    forget(node);
  } else if (inspection.only_stacks_follow) {
    facts_missing_.erase(node);
  } else {
    report_.add(inspection.rank, nodes_[node].host, inspection.state);
    report_.add_stacks(inspection.rank, inspection.text);
    if (inspection.steps) report_.add_step(inspection.rank, inspection.step);
  }
}

bool HangInvestigation::cancel() {
  if (purpose_ == Purpose::kAsked || purpose_ == Purpose::kFailed || !cause_.empty()) return false;
  return abandon();
}

HangVerdict HangInvestigation::conclude(const std::string& files, Time now) {
  DDP_REQUIRE(inspecting(), asked_.size());
  inspect_due_.reset();
  detector_.resume(now);
  const std::vector<std::uint32_t> behind = report_.behind();
  // Only a rank that alone is behind is killed at once. Of several, some may wait for another one, and the
  // revoke shows which of them answer.
  hung_.clear();
  if (purpose_ == Purpose::kHang && behind.size() == 1) hung_ = behind;
  return verdict(files);
}

HangVerdict HangInvestigation::verdict(const std::string& files) const {
  const std::vector<std::uint32_t> behind = report_.behind();
  HangVerdict verdict;
  using Kind = HangVerdict::Kind;
  verdict.kind = purpose_ == Purpose::kHang && !inspecting() ? Kind::kHung
                 : purpose_ == Purpose::kFailed              ? Kind::kFailed
                 : quiet_for_ > Time(0)                      ? Kind::kStalled
                                                             : Kind::kActive;
  verdict.quiet = quiet_for_;
  if (purpose_ == Purpose::kStall || purpose_ == Purpose::kHang) verdict.files = files;
  const std::string activity = report_.activity(quiet_for_);
  const std::string late = report_.behind_text();
  const std::vector<int> stopped = report_.stopped();
  if (!late.empty()) verdict.witnesses.push_back({"steps", report_.ranks(), late});
  if (!cause_.empty()) verdict.witnesses.push_back({"output", 1, cause_});
  if (!report_.ras().empty()) verdict.witnesses.push_back({"NCCL RAS", 0, report_.ras()});
  if (quiet_for_ > Time(0)) verdict.witnesses.push_back({"activity", 0, activity});
  for (const std::string& line : report_.lines())
    verdict.witnesses.push_back({"processes", report_.ranks(), line});
  if (const std::string hint = report_.hint(); !hint.empty()) verdict.witnesses.push_back({"hint", 0, hint});
  // The recorders tell more (FailureLog::name_hang). In a job that is active a rank may merely be later.
  verdict.text = !cause_.empty()        ? cause_
                 : quiet_for_ > Time(0) ? activity
                                        : "no rank is known to wait for another";
  if (!stopped.empty()) {
    verdict.text = format_ranks(stopped) + (stopped.size() == 1 ? " is " : " are ") + kStoppedText;
    verdict.ranks = stopped;
    verdict.confidence = HangVerdict::Confidence::kMedium;
  } else if (!late.empty() && quiet_for_ > Time(0)) {
    verdict.text = late;
    verdict.ranks.assign(behind.begin(), behind.end());
    verdict.confidence = HangVerdict::Confidence::kMedium;
  }
  return verdict;
}

std::string HangInvestigation::hung_text(const std::string& files) const {
  const std::string late = report_.behind_text();
  std::string text = "the job hung: " + (cause_.empty() ? report_.activity(quiet_for_) : cause_) +
                     (late.empty() ? "" : ": " + late);
  for (const std::string& line : report_.lines())
    text += "\n" + line;
  text += "\nstacks and state of each rank: " + files;
  if (const std::string hint = report_.hint(); !hint.empty()) text += "\nhint: " + hint;
  return text;
}

}  // namespace ddp::launcher
