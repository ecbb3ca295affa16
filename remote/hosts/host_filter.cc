#include "remote/hosts/host_filter.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "remote/hosts/host.h"
#include "remote/hosts/host_spec.h"

namespace ddp::remote {

namespace {

/// The selection of one host by one option.
struct Selection {
  bool whole = false;
  std::set<int> slots;
};

std::string where_listed(const Host& host) {
  std::string text = host.location.file;
  if (host.location.line > 0) text += ':' + std::to_string(host.location.line);
  return text.empty() ? "the list of hosts" : text;
}

// Reads one option into selections, by the host's index.
class FilterReader {
 public:
  FilterReader(const std::vector<Host>& hosts, std::string option)
      : hosts_(hosts), option_(std::move(option)) {
    for (std::size_t i = 0; i < hosts.size(); ++i)
      index_.emplace(lower_case(hosts[i].name), i);
  }

  void read(std::string_view text);
  std::map<std::size_t, Selection> selections;
  std::vector<Diagnostic> diagnostics;

 private:
  bool is_user(std::string_view part, std::string_view rest) const;
  void read_part(std::string_view part, std::size_t offset);
  std::optional<std::vector<int>> read_slots(std::string_view text, std::size_t offset);
  void select(const std::string& name, std::size_t offset, const std::vector<int>* slots);
  void fail(std::size_t offset, std::string message) {
    diagnostics.push_back({SourceLocation{option_, 0, static_cast<int>(offset) + 1}, std::move(message)});
  }

  const std::vector<Host>& hosts_;
  std::string option_;
  std::unordered_map<std::string, std::size_t> index_;
};

void FilterReader::read(std::string_view text) {
  std::size_t begin = 0;
  while (diagnostics.size() < kMaxDiagnostics) {
    const std::size_t end = std::min(text.find('@', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!is_user(part, text.substr(std::min(end + 1, text.size())))) read_part(part, begin);
    if (end == text.size()) return;
    begin = end + 1;
  }
}

// Returns whether `part` is the user of the host that begins `rest`, in root@gpu01 as the hostfile has it.
// The name of a listed host is that host.
bool FilterReader::is_user(std::string_view part, std::string_view rest) const {
  if (index_.contains(lower_case(part))) return false;
  const std::string_view next = rest.substr(0, rest.find('@'));
  const HostSpec spec = parse_host_spec(is_ipv6(next) ? next : next.substr(0, name_length(next)));
  return !spec.names.empty() &&
         std::all_of(spec.names.begin(), spec.names.end(), [&](const std::string& name) {
           const auto found = index_.find(lower_case(name));
           return found != index_.end() && hosts_[found->second].user == part;
         });
}

void FilterReader::read_part(std::string_view part, std::size_t offset) {
  const std::size_t end = is_ipv6(part) ? part.size() : name_length(part);
  const std::string_view name = part.substr(0, end);
  if (name.empty()) return fail(offset, "a host is missing; the form is gpu01:0,2@gpu02");
  std::optional<std::vector<int>> slots;
  if (end < part.size()) {
    if (part[end] != ':') return fail(offset + end, "expected ':' and slots after the host, as in gpu01:0,2");
    slots = read_slots(part.substr(end + 1), offset + end + 1);
    if (!slots) return;
  }
  HostSpec word = parse_host_spec(name);
  for (RangeError& error : word.errors) {
    const bool comma = error.message.starts_with("','");
    fail(offset + error.offset, comma ? "',' separates the slots of one host; hosts are separated by '@': "
                                        "gpu01@gpu02 or gpu01:0,2@gpu02"
                                      : std::move(error.message));
  }
  if (!word.errors.empty()) return;
  for (const std::string& host : word.names) {
    if (diagnostics.size() >= kMaxDiagnostics) return;
    select(host, offset, slots ? &*slots : nullptr);
  }
}

std::optional<std::vector<int>> FilterReader::read_slots(std::string_view text, std::size_t offset) {
  Expansion ids = expand_ids(text, true);
  if (ids.error) {
    fail(offset + ids.error->offset, std::move(ids.error->message));
    return std::nullopt;
  }
  std::vector<int> slots;
  for (const std::string& id : ids.words) {
    const auto number = whole_number(id, kMaxSlots);
    if (!number) {
      fail(offset, '"' + id +
                       "\" is not a slot number; slots are numbered from 0, and hosts are separated by '@': "
                       "gpu01:0,2@gpu02");
      return std::nullopt;
    }
    slots.push_back(static_cast<int>(*number));
  }
  return slots;
}

void FilterReader::select(const std::string& name, std::size_t offset, const std::vector<int>* slots) {
  const auto found = index_.find(lower_case(name));
  if (found == index_.end()) {
    std::vector<std::string_view> names;
    for (const Host& host : hosts_)
      names.push_back(host.name);
    const std::string_view near = nearest_word(name, names);
    const std::string file = hosts_.empty() ? "the list of hosts" : hosts_.front().location.file;
    fail(offset, "host " + name + " is not in " + (file.empty() ? "the list of hosts" : file) +
                     (near.empty() ? std::string() : "; did you mean " + std::string(near) + "?"));
    return;
  }
  const Host& host = hosts_[found->second];
  Selection& selection = selections[found->second];
  if (slots == nullptr) {
    selection.whole = true;
    return;
  }
  for (const int slot : *slots) {
    if (host.slots && slot >= *host.slots) {
      fail(offset, host.name + " has no slot " + std::to_string(slot) +
                       ": slots=" + std::to_string(*host.slots) + " in " + where_listed(host) + " makes 0" +
                       (*host.slots > 1 ? " to " + std::to_string(*host.slots - 1) : std::string()));
    }
    selection.slots.insert(slot);
  }
}

// Reduces the host to `slots`.
void keep_slots(Host& host, const std::set<int>& slots) {
  std::vector<std::string> devices;
  for (const int slot : slots) {
    const auto i = static_cast<std::size_t>(slot);
    devices.push_back(i < host.devices.size() ? host.devices[i] : std::to_string(slot));
  }
  host.slots = static_cast<int>(slots.size());
  host.devices = std::move(devices);
}

std::vector<Host> included(std::vector<Host> hosts, const std::map<std::size_t, Selection>& selections) {
  std::vector<Host> kept;
  for (const auto& [index, selection] : selections) {
    Host& host = hosts[index];
    if (!selection.whole) keep_slots(host, selection.slots);
    kept.push_back(std::move(host));
  }
  return kept;
}

std::vector<Host> excluded(std::vector<Host> hosts, FilterReader& reader) {
  std::vector<Host> kept;
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    Host& host = hosts[i];
    const auto found = reader.selections.find(i);
    if (found != reader.selections.end()) {
      if (found->second.whole) continue;
      if (!host.slots) {
        reader.diagnostics.push_back({SourceLocation{"--exclude"},
                                      "slots of " + host.name + " cannot be excluded: " + where_listed(host) +
                                          " does not say how many it has; add slots=N there"});
        continue;
      }
      std::set<int> rest;
      for (int slot = 0; slot < *host.slots; ++slot) {
        if (!found->second.slots.contains(slot)) rest.insert(slot);
      }
      if (rest.empty()) continue;
      keep_slots(host, rest);
    }
    kept.push_back(std::move(host));
  }
  return kept;
}

}  // namespace

Validated<std::vector<Host>> filter_hosts(std::vector<Host> hosts, std::string_view include,
                                          std::string_view exclude) {
  if (include.empty() && exclude.empty()) return hosts;
  if (!include.empty() && !exclude.empty()) {
    return DiagnosticList{
        {{SourceLocation{}, "--include and --exclude cannot be used together; use one of them"}}};
  }
  const bool is_include = !include.empty();
  const std::string option = is_include ? "--include" : "--exclude";
  FilterReader reader(hosts, option);
  reader.read(is_include ? include : exclude);
  if (!reader.diagnostics.empty()) return DiagnosticList{std::move(reader.diagnostics)};
  std::vector<Host> kept = is_include ? included(hosts, reader.selections) : excluded(hosts, reader);
  if (!reader.diagnostics.empty()) return DiagnosticList{std::move(reader.diagnostics)};
  if (kept.empty()) return DiagnosticList{{{SourceLocation{option, 0, 0}, "no host is left to run on"}}};
  return kept;
}

}  // namespace ddp::remote
