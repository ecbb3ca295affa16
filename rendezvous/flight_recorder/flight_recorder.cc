// The memory that a rank writes and anybody may read; its dump as JSON lines; and analyze_desync(), which
// compares the dumps of all ranks.
#include "rendezvous/flight_recorder/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <map>
#include <tuple>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/text.h"

namespace ddp::rendezvous {
namespace {

constexpr const char* kLogSchema = "ddp-flight-recorder/2";
constexpr const char* kOldSchema = "ddp-flight-recorder/1";  // has only the group "world"

static_assert(std::is_trivially_copyable_v<FlightRecorderMemory>);
static_assert(sizeof(FlightRecorderMemory::Entry) == 64);
static_assert(sizeof(FlightRecorderMemory) <= FlightRecorderMemory::kStride);

/// Truncates text that is too long.
template <std::size_t N>
void put(std::array<char, N>& field, std::string_view text) {
  field.fill('\0');
  std::ranges::copy(text.substr(0, N), field.begin());
}

template <std::size_t N>
std::string taken(const std::array<char, N>& field) {
  return {field.begin(), std::ranges::find(field, '\0')};
}

FlightRecorderMemory::Entry& entry_of(FlightRecorderMemory::Group& group, std::uint64_t sequence) {
  return group.ring[static_cast<std::size_t>((sequence - 1) % FlightRecorderMemory::kCapacity)];
}

/// Release store: the writer may be killed at any moment, so the memory must always be readable.
void publish(std::uint64_t& number, std::uint64_t value) {
  std::atomic_ref<std::uint64_t>(number).store(value, std::memory_order_release);
}

std::vector<RecordedCollective> entries_of(const FlightRecorderMemory::Group& group) {
  std::vector<RecordedCollective> entries;
  for (std::size_t i = 0; i < group.ring.size(); ++i) {
    const FlightRecorderMemory::Entry& entry = group.ring[i];
    if (entry.sequence == 0 || entry.sequence > group.last) continue;
    // The writer may have died anywhere, and any process may have written here: an entry counts only at its
    // place.
    if ((entry.sequence - 1) % FlightRecorderMemory::kCapacity != i) continue;
    entries.push_back(
        {entry.sequence, taken(entry.kind), entry.bytes, taken(entry.type), entry.started, entry.finished});
  }
  std::ranges::sort(entries, {}, &RecordedCollective::sequence);
  return entries;
}

/// Larger rank numbers are rejected, since the analysis of the logs loops over all ranks of the world.
constexpr int kMostRanks = 1'000'000;

bool may_be(int first, int ranks) {
  return first >= 0 && ranks >= 0 && first <= kMostRanks && ranks <= kMostRanks;
}

template <class T>
bool read_field(const nlohmann::json& line, const char* key, T& value) {
  const auto found = line.find(key);
  if (found == line.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
    value = found->template get<T>();
  } else if (found->is_number_unsigned()) {
    const auto number = found->template get<std::uint64_t>();
    if (!std::in_range<T>(number)) return false;
    value = static_cast<T>(number);
  } else {
    if (!found->is_number_integer()) return false;
    const auto number = found->template get<std::int64_t>();
    if (!std::in_range<T>(number)) return false;
    value = static_cast<T>(number);
  }
  return true;
}

bool take_members(const nlohmann::json& list, std::vector<int>& members) {
  if (!list.is_array()) return false;
  for (const nlohmann::json& member : list) {
    if (!member.is_number_unsigned() || member.get<std::uint64_t>() > kMostRanks) return false;
    members.push_back(member.get<int>());
  }
  return std::ranges::is_sorted(members);
}

bool take_groups(const nlohmann::json& line, std::vector<RecordedGroup>& groups) {
  const auto found = line.find("groups");
  if (found == line.end() || !found->is_array()) return false;
  for (const nlohmann::json& one : *found) {
    RecordedGroup& group = groups.emplace_back();
    if (!one.is_object() || !read_field(one, "name", group.name) || !read_field(one, "ranks", group.ranks))
      return false;
    if (one.contains("first") && !read_field(one, "first", group.first)) return false;
    if (one.contains("members") && !take_members(one.at("members"), group.members)) return false;
    if (!may_be(group.first, group.ranks)) return false;
  }
  return true;
}

bool take_head(const nlohmann::json& line, FlightRecorderDump& dump) {
  std::string schema;
  if (!read_field(line, "schema", schema) || !read_field(line, "rank", dump.rank) ||
      !read_field(line, "world_size", dump.world_size) || !read_field(line, "attempt", dump.attempt) ||
      !read_field(line, "reason", dump.reason))
    return false;
  if (dump.rank < 0 || dump.world_size <= dump.rank || dump.world_size > kMostRanks) return false;
  if (line.contains("taken") && !read_field(line, "taken", dump.taken)) return false;
  if (line.contains("place") && !read_field(line, "place", dump.place)) return false;
  if (schema == kLogSchema) return take_groups(line, dump.groups);
  dump.groups.push_back({"world", 0, dump.world_size, {}});
  return schema == kOldSchema;
}

/// Returns the group that an operation's line names, or null if the head has no such group.
RecordedGroup* group_of(const nlohmann::json& line, FlightRecorderDump& dump) {
  std::string name = "world";
  if (line.contains("group") && !read_field(line, "group", name)) return nullptr;
  const auto found = std::ranges::find(dump.groups, name, &RecordedGroup::name);
  return found == dump.groups.end() ? nullptr : &*found;
}

bool take_entry(const nlohmann::json& line, RecordedCollective& entry) {
  return read_field(line, "sequence", entry.sequence) && read_field(line, "kind", entry.kind) &&
         read_field(line, "bytes", entry.bytes) && read_field(line, "type", entry.type) &&
         read_field(line, "started", entry.started) && read_field(line, "finished", entry.finished);
}

}  // namespace

void begin_collectives(FlightRecorderMemory& memory, int rank, int world_size, std::uint32_t attempt) {
  // While the magic is gone, a reader takes the memory for never written.
  publish(memory.magic, 0);
  memory.attempt = attempt;
  memory.rank = rank;
  memory.world_size = world_size;
  memory.groups = 0;
  publish(memory.magic, FlightRecorderMemory::kMagic);
}

FlightRecorderMemory::Group* add_collective_group(FlightRecorderMemory& memory, std::string_view name,
                                                  int first, int ranks) {
  if (memory.groups >= FlightRecorderMemory::kGroups) return nullptr;
  FlightRecorderMemory::Group& group = memory.group[memory.groups];
  put(group.name, name);
  group.first = first;
  group.ranks = ranks;
  // The ring keeps the entries of the attempt before. `last` hides them.
  group.last = 0;
  std::atomic_ref<std::uint32_t>(memory.groups).store(memory.groups + 1, std::memory_order_release);
  return &group;
}

std::uint64_t FlightRecorder::start(std::string_view kind, std::uint64_t bytes, std::string_view type,
                                    std::int64_t now) {
  const std::uint64_t sequence = group_.last + 1;
  FlightRecorderMemory::Entry& entry = entry_of(group_, sequence);
  // Readers must not see the following stores before this one. Acquire keeps them from moving above it.
  std::atomic_ref<std::uint64_t>(entry.sequence).exchange(0, std::memory_order_acq_rel);
  entry.bytes = bytes;
  entry.started = now;
  entry.finished = 0;
  put(entry.kind, kind);
  put(entry.type, type);
  // The entry first, then the group's last number: a reader that sees the number finds the whole entry.
  publish(entry.sequence, sequence);
  publish(group_.last, sequence);
  return sequence;
}

void FlightRecorder::finish(std::uint64_t sequence, std::int64_t now) {
  if (sequence == 0 || sequence > group_.last) return;
  FlightRecorderMemory::Entry& entry = entry_of(group_, sequence);
  if (entry.sequence == sequence)
    std::atomic_ref<std::int64_t>(entry.finished).store(now, std::memory_order_release);
}

std::optional<FlightRecorderDump> read_collectives(const FlightRecorderMemory& memory, std::size_t before,
                                                   std::size_t most) {
  if (memory.magic != FlightRecorderMemory::kMagic || memory.rank < 0 || memory.world_size <= memory.rank ||
      memory.world_size > kMostRanks)
    return std::nullopt;
  FlightRecorderDump dump{memory.rank, memory.world_size, memory.attempt, "", {}};
  for (std::size_t i = 0; i < std::min<std::size_t>(memory.groups, FlightRecorderMemory::kGroups); ++i) {
    if (!may_be(memory.group[i].first, memory.group[i].ranks)) continue;
    std::vector<RecordedCollective> entries = entries_of(memory.group[i]);
    const auto open = std::ranges::find(entries, 0, &RecordedCollective::finished);
    const auto done = static_cast<std::size_t>(open - entries.begin());
    // What is open explains a hang. Of what is done, only the last few operations show where the rank came
    // from.
    entries.erase(entries.begin(), open - static_cast<std::ptrdiff_t>(std::min(before, done)));
    if (entries.size() > most) entries.resize(most);
    dump.groups.push_back(
        {taken(memory.group[i].name), memory.group[i].first, memory.group[i].ranks, std::move(entries)});
  }
  return dump;
}

std::string dump_text(const FlightRecorderDump& dump) {
  using Json = nlohmann::ordered_json;
  const auto line = [](const Json& object) {
    return object.dump(-1, ' ', true, Json::error_handler_t::replace) + '\n';
  };
  Json groups = Json::array();
  for (const RecordedGroup& group : dump.groups) {
    groups.push_back({{"name", group.name}, {"first", group.first}, {"ranks", group.ranks}});
    if (!group.members.empty()) groups.back()["members"] = group.members;
  }
  Json head = {{"schema", kLogSchema},    {"rank", dump.rank},     {"world_size", dump.world_size},
               {"attempt", dump.attempt}, {"reason", dump.reason}, {"groups", groups}};
  if (dump.taken != 0) head["taken"] = dump.taken;
  if (!dump.place.empty()) head["place"] = dump.place;
  std::string text = line(head);
  for (const RecordedGroup& group : dump.groups) {
    for (const RecordedCollective& entry : group.entries) {
      text += line({{"group", group.name},
                    {"sequence", entry.sequence},
                    {"kind", entry.kind},
                    {"bytes", entry.bytes},
                    {"type", entry.type},
                    {"started", entry.started},
                    {"finished", entry.finished}});
    }
  }
  return text;
}

std::optional<FlightRecorderDump> parse_dump(std::string_view text) {
  FlightRecorderDump dump;
  bool head = false;
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    const auto line = nlohmann::json::parse(text.substr(0, end), nullptr, false);
    if (!line.is_object()) return std::nullopt;
    if (!head) {
      if (!take_head(line, dump)) return std::nullopt;
      head = true;
      continue;
    }
    RecordedGroup* const group = group_of(line, dump);
    RecordedCollective entry;
    if (group == nullptr || !take_entry(line, entry)) return std::nullopt;
    group->entries.push_back(std::move(entry));
  }
  if (!head) return std::nullopt;
  return dump;
}

// analyze_desync(): combines the logs of all ranks.
namespace {

std::string ranks_text(const std::set<int>& ranks) {
  return format_ranks({ranks.begin(), ranks.end()});
}

const char* wait_text(const std::set<int>& ranks) {
  return ranks.size() == 1 ? " waits in" : " wait in";
}
const char* have_text(const std::set<int>& ranks) {
  return ranks.size() == 1 ? " has" : " have";
}

/// " of node 0", " between the nodes"; nothing for the world.
std::string location_text(const std::string& group) {
  if (group == "world" || group == kJoining || group == kByStacks) return "";
  return group == "between" ? " between the nodes" : " of " + group;
}

/// "all-reduce 517 (116 KB)"; a barrier has no size, nor have operations in which the sizes of ranks differ.
std::string collective_text(const RecordedCollective& entry) {
  if (entry.kind == kJoining || entry.sequence == kUnnumbered) return entry.kind;
  const std::string text = entry.kind + " " + std::to_string(entry.sequence);
  return entry.kind == "barrier" || entry.bytes == 0 ? text : text + " (" + format_bytes(entry.bytes) + ")";
}

using OperationKey = std::tuple<std::string, std::uint64_t, std::string>;
OperationKey operation_key(const RecordedCollective& entry) {
  return {entry.kind, entry.bytes, entry.type};
}
/// Describes `entry` with the least detail that distinguishes it from `other`.
std::string called_text(const RecordedCollective& entry, const RecordedCollective& other,
                        const std::string& location) {
  const bool alike = entry.kind == other.kind && format_bytes(entry.bytes) == format_bytes(other.bytes);
  if (alike && entry.bytes != other.bytes)
    return entry.kind + " " + std::to_string(entry.sequence) + " (" + std::to_string(entry.bytes) +
           " bytes)" + location;
  const std::string text = collective_text(entry) + location;
  return alike ? text + " of " + entry.type : text;
}

/// For each sequence number, the operation that each rank called.
using BySequence = std::map<std::uint64_t, std::map<int, RecordedCollective>>;

/// The logged operations of one group.
struct GroupLogs {
  std::string location;  ///< location_text()
  int first = 0;
  int ranks = 0;          ///< that call the group's operations: `first` and the following ones
  std::set<int> members;  ///< RecordedGroup::members
  BySequence sequences;
  std::map<int, std::uint64_t> last;  ///< last sequence number of each rank
  std::map<int, std::int64_t> taken;  ///< FlightRecorderDump::taken of each rank that has it
  std::set<int> waiting;              ///< ranks that wait in any operation
};

/// Finds the first operation that differs between ranks.
DesyncVerdict different_collective(const GroupLogs& group_logs) {
  constexpr std::size_t kOthers = 3;
  const BySequence& sequences = group_logs.sequences;
  for (const auto& [sequence, by_rank] : sequences) {
    std::map<OperationKey, std::set<int>> groups;
    for (const auto& [rank, entry] : by_rank)
      groups[operation_key(entry)].insert(rank);
    if (groups.size() < 2) continue;
    // Sizes may differ by right where PyTorch records them (uneven tensors): then the operation ends.
    const bool one_kind = std::get<0>(groups.begin()->first) == std::get<0>(groups.rbegin()->first);
    const auto is_open = [](const auto& call) { return call.second.finished == 0; };
    if (one_kind && std::ranges::none_of(by_rank, is_open)) continue;
    // A majority is right. Without one, the text ends with the group of the lowest rank.
    const auto right = std::ranges::max_element(groups, [](const auto& a, const auto& b) {
      return std::pair(a.second.size(), -*a.second.begin()) < std::pair(b.second.size(), -*b.second.begin());
    });
    const RecordedCollective& theirs = by_rank.at(*right->second.begin());
    DesyncVerdict verdict{"", {}, true, true, right->second.size() * 2 <= by_rank.size()};
    if (verdict.unsure) verdict.named = right->second;
    std::size_t listed = 0;
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      if (group == right) continue;
      verdict.named.insert(group->second.begin(), group->second.end());
      if (++listed > kOthers) continue;
      verdict.text += (listed == 1 ? "" : ", ") + ranks_text(group->second) + " called " +
                      called_text(by_rank.at(*group->second.begin()), theirs, group_logs.location);
    }
    if (listed > kOthers) verdict.text += ", and further ranks called other operations";
    const RecordedCollective& ours =
        by_rank.at(*(groups.begin() == right ? std::next(right) : groups.begin())->second.begin());
    verdict.text +=
        " where " + ranks_text(right->second) + " called " + called_text(theirs, ours, group_logs.location);
    if (verdict.unsure) verdict.text += "; no majority tells which of them are wrong";
    return verdict;
  }
  return {};
}

struct OperationProgress {
  std::set<int> waiting, behind, done;
  std::chrono::nanoseconds waited{0};  ///< the longest time of those that wait; 0: unknown

  std::string waited_text() const { return waited.count() > 0 ? " for " + format_elapsed(waited) : ""; }
};

/// Sorts the ranks by their state in one operation. A rank whose ring has overwritten the operation has
/// finished it.
OperationProgress progress_of(const std::map<int, RecordedCollective>& by_rank, std::uint64_t sequence,
                              const GroupLogs& group) {
  OperationProgress progress;
  for (const auto& [rank, newest] : group.last) {
    const auto found = by_rank.find(rank);
    if (found == by_rank.end()) {
      (newest < sequence ? progress.behind : progress.done).insert(rank);
      continue;
    }
    (found->second.finished == 0 ? progress.waiting : progress.done).insert(rank);
    const auto taken = group.taken.find(rank);
    // The clock may have been set meanwhile, and any process may have written the dump.
    const bool known = taken != group.taken.end() && found->second.finished == 0 && found->second.started > 0;
    if (known && taken->second > found->second.started)
      progress.waited =
          std::max(progress.waited, std::chrono::nanoseconds(taken->second - found->second.started));
  }
  return progress;
}

/// Ranks without a log: they have ended, or nothing is known about them.
struct RanksWithoutLog {
  std::set<int> ended, lost;
  bool any() const { return !ended.empty() || !lost.empty(); }
};

std::string silent_text(const RanksWithoutLog& silent) {
  if (silent.lost.empty()) return ranks_text(silent.ended) + have_text(silent.ended) + " ended";
  const std::string lost = ranks_text(silent.lost) + " left no record";
  return silent.ended.empty() ? lost
                              : lost + ", " + ranks_text(silent.ended) + have_text(silent.ended) + " ended";
}

DesyncVerdict verdict_on(const std::string& name, const OperationProgress& progress,
                         const RanksWithoutLog& silent) {
  // In the order of certainty: a rank that has not started is the reason, one without a log probably is, and
  // one that is merely later may be.
  if (!progress.behind.empty()) {
    const std::string others = progress.waiting.empty()
                                   ? ranks_text(progress.done) + have_text(progress.done) + " finished"
                                   : ranks_text(progress.waiting) + wait_text(progress.waiting);
    return {ranks_text(progress.behind) + have_text(progress.behind) + " not started " + name + " that " +
                others + progress.waited_text(),
            progress.behind, !progress.waiting.empty(), false,
            progress.behind.size() > progress.waiting.size() + progress.done.size()};
  }
  if (silent.any()) {
    std::set<int> named = silent.lost.empty() ? silent.ended : silent.lost;
    return {silent_text(silent) + "; " + ranks_text(progress.waiting) + wait_text(progress.waiting) + " " +
                name + progress.waited_text(),
            std::move(named), true};
  }
  if (!progress.done.empty()) {
    return {ranks_text(progress.waiting) + have_text(progress.waiting) + " not finished " + name + " that " +
                ranks_text(progress.done) + have_text(progress.done) + " finished",
            progress.waiting, false};
  }
  return {"all ranks wait in " + name + progress.waited_text() +
              ": the network between them fails, or one rank is stuck in it",
          {},
          false};
}

/// The share of the ranks that a group waits for which wait in other groups themselves: all, some or none.
enum class MissingRanks { kWaitElsewhere, kSomeElsewhere, kNoneElsewhere };

/// The reason why a group makes no progress.
struct Blockage {
  DesyncVerdict verdict;
  MissingRanks missed = MissingRanks::kWaitElsewhere;
};

/// For each rank, the number of groups in whose operations it waits; ranks that do not wait are absent.
using Waits = std::map<int, int>;

std::set<int> not_waiting_elsewhere(const std::set<int>& ranks, const GroupLogs& group, const Waits& waits) {
  std::set<int> rest;
  for (const int rank : ranks) {
    const auto found = waits.find(rank);
    // It waits at most in this group, so nothing else explains why it is not here.
    if (found == waits.end() || found->second == static_cast<int>(group.waiting.count(rank)))
      rest.insert(rest.end(), rank);
  }
  return rest;
}

RanksWithoutLog part_of(const RanksWithoutLog& world, const GroupLogs& group) {
  const auto cut = [&group](const std::set<int>& ranks) {
    std::set<int> part;
    std::ranges::set_intersection(ranks, group.members, std::inserter(part, part.end()));
    if (!group.members.empty()) return part;
    return std::set<int>(ranks.lower_bound(group.first), ranks.lower_bound(group.first + group.ranks));
  };
  return {cut(world.ended), cut(world.lost)};
}

/// `silent` covers the whole world.
Blockage hold_up_of(const GroupLogs& group, const RanksWithoutLog& silent, const Waits& waits) {
  const bool whole = group.last.size() >= static_cast<std::size_t>(group.ranks);
  const RanksWithoutLog missing = whole ? RanksWithoutLog() : part_of(silent, group);
  Blockage all_wait;
  for (const auto& [sequence, by_rank] : group.sequences) {
    OperationProgress progress = progress_of(by_rank, sequence, group);
    // Every logged rank has finished this operation, and a rank without a log may have finished it too. The
    // operations in which ranks wait show where that rank is.
    if (progress.waiting.empty() && progress.behind.empty()) continue;
    const std::set<int> nowhere = not_waiting_elsewhere(progress.behind, group, waits);
    MissingRanks missed = MissingRanks::kWaitElsewhere;
    if (progress.behind.empty() ? missing.any() : nowhere.size() == progress.behind.size()) {
      missed = MissingRanks::kNoneElsewhere;
    } else if (!nowhere.empty()) {
      missed = MissingRanks::kSomeElsewhere;
      progress.behind = nowhere;
    }
    const Blockage found{
        verdict_on(collective_text(by_rank.begin()->second) + group.location, progress, missing), missed};
    // Operations may overlap. If all ranks wait in this one, a later one may show which rank has stopped.
    if (progress.waiting.size() < group.last.size())
      return all_wait.verdict.text.empty() || !progress.behind.empty() ? found : all_wait;
    if (all_wait.verdict.text.empty()) all_wait = found;
  }
  return all_wait;
}

using Groups = std::map<std::string, GroupLogs>;

void add(Groups& groups, int rank, std::int64_t taken, const RecordedGroup& logged) {
  GroupLogs& group = groups[logged.name];
  group.location = location_text(logged.name);
  group.first = logged.first;
  group.ranks = std::max(group.ranks, logged.ranks);
  group.members.insert(logged.members.begin(), logged.members.end());
  if (taken != 0) group.taken[rank] = taken;
  group.last[rank] = logged.entries.empty() ? 0 : logged.entries.back().sequence;
  for (const RecordedCollective& entry : logged.entries) {
    group.sequences[entry.sequence][rank] = entry;
    if (entry.finished == 0) group.waiting.insert(rank);
  }
}

bool is_by_stacks(const FlightRecorderDump& dump) {
  return !dump.groups.empty() && dump.groups.front().name == kByStacks;
}

bool has_point_to_point(const std::vector<FlightRecorderDump>& dumps) {
  return std::ranges::any_of(dumps, [](const FlightRecorderDump& dump) {
    return is_by_stacks(dump) && std::ranges::any_of(dump.groups.front().entries, [](const auto& entry) {
             return entry.kind.find("send") != std::string::npos ||
                    entry.kind.find("recv") != std::string::npos;
           });
  });
}

/// Returns whether all that is known of operations comes from stacks.
bool are_by_stacks(const std::vector<FlightRecorderDump>& dumps) {
  const auto adds_nothing = [](const FlightRecorderDump& dump) {
    return dump.groups.empty() || is_by_stacks(dump);
  };
  return std::ranges::any_of(dumps, is_by_stacks) && std::ranges::all_of(dumps, adds_nothing);
}

DesyncVerdict diagnose(const std::vector<FlightRecorderDump>& dumps, const std::set<int>& ended) {
  std::uint32_t attempt = 0;
  for (const FlightRecorderDump& dump : dumps)
    attempt = std::max(attempt, dump.attempt);
  // Where other ranks have a record, stacks do not compare with it: they only tell where the rank is.
  const bool compares_stacks = are_by_stacks(dumps);
  Groups groups;
  std::set<int> there;
  int world_size = 0;
  for (const FlightRecorderDump& dump : dumps) {
    if (dump.attempt != attempt) continue;
    world_size = std::max(world_size, dump.world_size);
    if (!compares_stacks && is_by_stacks(dump)) continue;
    if (!dump.groups.empty() || dump.place.empty()) there.insert(dump.rank);
    for (const RecordedGroup& group : dump.groups)
      add(groups, dump.rank, dump.taken, group);
  }
  // A rank that has called nothing is behind in each of its groups, also in those that it does not know yet.
  for (const FlightRecorderDump& dump : dumps) {
    const auto called = [](const RecordedGroup& group) { return !group.entries.empty(); };
    if (dump.attempt != attempt || dump.groups.empty() || std::ranges::any_of(dump.groups, called)) continue;
    if (!compares_stacks && is_by_stacks(dump)) continue;
    for (auto& [name, group] : groups) {
      const bool in_range = dump.rank >= group.first && dump.rank < group.first + group.ranks;
      const bool left_it = name == kJoining && dump.groups.front().name != kJoining;
      if (!left_it && (group.members.empty() ? in_range : group.members.contains(dump.rank)))
        group.last.try_emplace(dump.rank, 0);
    }
  }
  RanksWithoutLog silent;
  for (int rank = 0; rank < world_size; ++rank) {
    std::set<int>& part = ended.count(rank) != 0 ? silent.ended : silent.lost;
    if (there.count(rank) == 0) part.insert(part.end(), rank);
  }
  Waits waits;
  for (const auto& [name, group] : groups)
    for (const int rank : group.waiting)
      ++waits[rank];
  for (const auto& [name, group] : groups) {
    if (DesyncVerdict verdict = different_collective(group); !verdict.text.empty()) return verdict;
  }
  Blockage first;
  for (const auto& [name, group] : groups) {
    Blockage found = hold_up_of(group, silent, waits);
    // Groups wait for each other in a chain. The one whose missing ranks wait nowhere else is at its end.
    if (first.verdict.text.empty() || (!found.verdict.text.empty() && found.missed > first.missed))
      first = std::move(found);
  }
  return first.verdict;
}

/// "; rank 3 is in its data loader, at train.py:30": where the named ranks are, those at one place together.
/// If none of them has told that, where the others are.
std::string places_text(const std::vector<FlightRecorderDump>& dumps, const std::set<int>& named) {
  constexpr std::size_t kPlaces = 3;
  const auto told = [&](bool by_named) {
    std::map<std::string, std::set<int>> places;
    for (const FlightRecorderDump& dump : dumps)
      if (named.contains(dump.rank) == by_named && !dump.place.empty()) places[dump.place].insert(dump.rank);
    return places;
  };
  auto places = told(true);
  if (places.empty() && !named.empty()) places = told(false);
  std::string text;
  std::size_t listed = 0;
  for (const auto& [place, ranks] : places) {
    if (++listed > kPlaces) break;
    text += "; " + ranks_text(ranks) + (ranks.size() == 1 ? " is " : " are ") + place;
  }
  return text;
}

}  // namespace

DesyncVerdict analyze_desync(const std::vector<FlightRecorderDump>& dumps, const std::set<int>& ended) {
  DesyncVerdict verdict = diagnose(dumps, ended);
  verdict.by_stacks = are_by_stacks(dumps);
  // Ranks that are in the same call may be in different ones of a loop, and a pair that sends and receives
  // differs as it should.
  if (verdict.by_stacks && (!verdict.waited_for || has_point_to_point(dumps))) verdict.text.clear();
  if (verdict.by_stacks && verdict.text.empty()) return verdict;
  verdict.text += places_text(dumps, verdict.named);
  // Names come from memory or files that any process may have written.
  for (char& c : verdict.text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return verdict;
}

}  // namespace ddp::rendezvous
