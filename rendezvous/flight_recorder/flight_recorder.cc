#include "rendezvous/flight_recorder/flight_recorder.h"

#include <algorithm>
#include <atomic>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

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
bool take(const nlohmann::json& line, const char* key, T& value) {
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

bool take_groups(const nlohmann::json& line, std::vector<RecordedGroup>& groups) {
  const auto found = line.find("groups");
  if (found == line.end() || !found->is_array()) return false;
  for (const nlohmann::json& one : *found) {
    RecordedGroup& group = groups.emplace_back();
    if (!one.is_object() || !take(one, "name", group.name) || !take(one, "ranks", group.ranks)) return false;
    if (one.contains("first") && !take(one, "first", group.first)) return false;
    if (!may_be(group.first, group.ranks)) return false;
  }
  return true;
}

bool take_head(const nlohmann::json& line, FlightRecorderDump& dump) {
  std::string schema;
  if (!take(line, "schema", schema) || !take(line, "rank", dump.rank) ||
      !take(line, "world_size", dump.world_size) || !take(line, "attempt", dump.attempt) ||
      !take(line, "reason", dump.reason))
    return false;
  if (dump.rank < 0 || dump.world_size <= dump.rank || dump.world_size > kMostRanks) return false;
  if (schema == kLogSchema) return take_groups(line, dump.groups);
  dump.groups.push_back({"world", 0, dump.world_size, {}});
  return schema == kOldSchema;
}

/// Returns the group that an operation's line names, or null if the head has no such group.
RecordedGroup* group_of(const nlohmann::json& line, FlightRecorderDump& dump) {
  std::string name = "world";
  if (line.contains("group") && !take(line, "group", name)) return nullptr;
  const auto found = std::ranges::find(dump.groups, name, &RecordedGroup::name);
  return found == dump.groups.end() ? nullptr : &*found;
}

bool take_entry(const nlohmann::json& line, RecordedCollective& entry) {
  return take(line, "sequence", entry.sequence) && take(line, "kind", entry.kind) &&
         take(line, "bytes", entry.bytes) && take(line, "type", entry.type) &&
         take(line, "started", entry.started) && take(line, "finished", entry.finished);
}

}  // namespace

void begin_collectives(FlightRecorderMemory& memory, int rank, int world_size, std::uint32_t attempt) {
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
  for (const RecordedGroup& group : dump.groups)
    groups.push_back({{"name", group.name}, {"first", group.first}, {"ranks", group.ranks}});
  std::string text = line({{"schema", kLogSchema},
                           {"rank", dump.rank},
                           {"world_size", dump.world_size},
                           {"attempt", dump.attempt},
                           {"reason", dump.reason},
                           {"groups", groups}});
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

}  // namespace ddp::rendezvous
