#include "apps/train/collective_log.h"

#include <algorithm>

#include <nlohmann/json.hpp>

namespace ddp::train {

namespace {

constexpr const char* kLogSchema = "ddp-collective-log/2";
constexpr const char* kOldSchema = "ddp-collective-log/1";  // of the world alone

std::optional<CollectiveKind> kind_of(std::string_view text) {
  for (const auto kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kAllGather,
        CollectiveKind::kBarrier, CollectiveKind::kReduceScatter, CollectiveKind::kSendReceive}) {
    if (kind_text(kind) == text) return kind;
  }
  return std::nullopt;
}

std::string json_text(std::string_view text) {
  return nlohmann::json(std::string(text)).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

template <class T>
bool take(const nlohmann::json& line, const char* key, T& value) {
  const auto found = line.find(key);
  if (found == line.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else if (!found->is_number_integer()) {
    return false;
  }
  value = found->template get<T>();
  return true;
}

bool take_groups(const nlohmann::json& line, std::vector<LoggedGroup>& groups) {
  const auto found = line.find("groups");
  if (found == line.end() || !found->is_array()) return false;
  for (const nlohmann::json& one : *found) {
    LoggedGroup& group = groups.emplace_back();
    if (!one.is_object() || !take(one, "name", group.name) || !take(one, "ranks", group.ranks)) return false;
  }
  return true;
}

bool take_head(const nlohmann::json& line, CollectiveDump& dump) {
  std::string schema;
  if (!take(line, "schema", schema) || !take(line, "rank", dump.rank) ||
      !take(line, "world_size", dump.world_size) || !take(line, "attempt", dump.attempt) ||
      !take(line, "reason", dump.reason))
    return false;
  if (schema == kLogSchema) return take_groups(line, dump.groups);
  dump.groups.push_back({"world", dump.world_size, {}});
  return schema == kOldSchema;
}

/// The group that an operation's line names; null: none that the head has.
LoggedGroup* group_of(const nlohmann::json& line, CollectiveDump& dump) {
  std::string name = "world";
  if (line.contains("group") && !take(line, "group", name)) return nullptr;
  const auto found = std::ranges::find(dump.groups, name, &LoggedGroup::name);
  return found == dump.groups.end() ? nullptr : &*found;
}

bool take_entry(const nlohmann::json& line, LoggedCollective& entry) {
  std::string kind;
  if (!take(line, "sequence", entry.sequence) || !take(line, "kind", kind)) return false;
  const auto known = kind_of(kind);
  if (!known) return false;
  entry.kind = *known;
  return take(line, "bytes", entry.bytes) && take(line, "type", entry.type) &&
         take(line, "started", entry.started) && take(line, "finished", entry.finished);
}

}  // namespace

std::uint64_t CollectiveLog::start(CollectiveKind kind, std::uint64_t bytes, std::string_view type,
                                   std::int64_t now) {
  const std::uint64_t sequence = ++last_;
  const std::size_t place = static_cast<std::size_t>((sequence - 1) % kCapacity);
  if (place >= ring_.size()) ring_.resize(place + 1);
  LoggedCollective& entry = ring_[place];
  entry.sequence = sequence;
  entry.kind = kind;
  entry.bytes = bytes;
  entry.type.assign(type);
  entry.started = now;
  entry.finished = 0;
  return sequence;
}

void CollectiveLog::finish(std::uint64_t sequence, std::int64_t now) {
  if (sequence == 0 || sequence > last_) return;
  LoggedCollective& entry = ring_[static_cast<std::size_t>((sequence - 1) % kCapacity)];
  if (entry.sequence == sequence) entry.finished = now;
}

std::vector<LoggedCollective> CollectiveLog::entries() const {
  std::vector<LoggedCollective> entries(ring_);
  std::ranges::sort(entries, {}, &LoggedCollective::sequence);
  return entries;
}

std::string dump_text(const CollectiveDump& dump) {
  std::string text = "{\"schema\":" + json_text(kLogSchema) + ",\"rank\":" + std::to_string(dump.rank) +
                     ",\"world_size\":" + std::to_string(dump.world_size) +
                     ",\"attempt\":" + std::to_string(dump.attempt) +
                     ",\"reason\":" + json_text(dump.reason) + ",\"groups\":[";
  for (const LoggedGroup& group : dump.groups) {
    text += (&group == &dump.groups.front() ? "{\"name\":" : ",{\"name\":") + json_text(group.name) +
            ",\"ranks\":" + std::to_string(group.ranks) + "}";
  }
  text += "]}\n";
  for (const LoggedGroup& group : dump.groups) {
    const std::string name = json_text(group.name);
    for (const LoggedCollective& entry : group.entries) {
      text += "{\"group\":" + name + ",\"sequence\":" + std::to_string(entry.sequence) +
              ",\"kind\":" + json_text(kind_text(entry.kind)) + ",\"bytes\":" + std::to_string(entry.bytes) +
              ",\"type\":" + json_text(entry.type) + ",\"started\":" + std::to_string(entry.started) +
              ",\"finished\":" + std::to_string(entry.finished) + "}\n";
    }
  }
  return text;
}

std::optional<CollectiveDump> parse_dump(std::string_view text) {
  CollectiveDump dump;
  bool head = false;
  for (std::size_t end; (end = text.find('\n')) != std::string_view::npos; text.remove_prefix(end + 1)) {
    const auto line = nlohmann::json::parse(text.substr(0, end), nullptr, false);
    if (!line.is_object()) return std::nullopt;
    if (!head) {
      if (!take_head(line, dump)) return std::nullopt;
      head = true;
      continue;
    }
    LoggedGroup* const group = group_of(line, dump);
    LoggedCollective entry;
    if (group == nullptr || !take_entry(line, entry)) return std::nullopt;
    group->entries.push_back(std::move(entry));
  }
  if (!head) return std::nullopt;
  return dump;
}

}  // namespace ddp::train
