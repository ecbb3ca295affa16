// From the answers of PyTorch's worker server to the dump that analyze_desync() compares.
#include "rendezvous/flight_recorder/torch_record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace ddp::rendezvous {
namespace {

using Json = nlohmann::json;

/// A dump must fit into a message (kMaxAgentDump) whatever a worker answers.
constexpr std::size_t kMostGroups = 64;
constexpr std::size_t kMostEntries = 200;
constexpr std::size_t kMostMembers = 2'048;
constexpr std::size_t kMostMembersOfAll = 4'096;
constexpr std::size_t kName = 48;
constexpr std::size_t kKind = 32;
constexpr std::size_t kType = 16;
constexpr std::size_t kPlace = 120;

/// Returns the member `key` if it is a string, cut at `most` bytes.
std::string text_at(const Json& object, const char* key, std::size_t most) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>().substr(0, most);
}

std::uint64_t number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

bool is_true(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

/// Bytes of one element of a c10::ScalarType (torch/headeronly/core/ScalarType.h); 0: unknown.
std::uint64_t element_bytes(std::string_view type) {
  static const std::map<std::string_view, std::uint64_t> kBytes = {
      {"byte", 1},        {"char", 1},         {"bool", 1},          {"short", 2}, {"half", 2},
      {"bfloat16", 2},    {"int", 4},          {"float", 4},         {"long", 8},  {"double", 8},
      {"complexhalf", 4}, {"complexfloat", 8}, {"complexdouble", 16}};
  if (type.starts_with("float8")) return 1;
  const auto found = kBytes.find(type);
  return found == kBytes.end() ? 0 : found->second;
}

/// Elements of all tensors in a list of shapes; 0: not such a list, or too many.
std::uint64_t elements(const Json& entry, const char* key) {
  const auto shapes = entry.find(key);
  if (shapes == entry.end() || !shapes->is_array()) return 0;
  std::uint64_t all = 0;
  for (const Json& shape : *shapes) {
    if (!shape.is_array()) return 0;
    std::uint64_t product = 1;
    for (const Json& size : shape) {
      if (!size.is_number_unsigned()) return 0;
      const auto count = size.get<std::uint64_t>();
      if (count != 0 && product > (std::uint64_t{1} << 48) / count) return 0;
      product *= count;
    }
    all += product;
  }
  return all <= std::uint64_t{1} << 48 ? all : 0;
}

std::string type_of(const Json& entry) {
  for (const char* key : {"input_dtypes", "output_dtypes"}) {
    const auto types = entry.find(key);
    if (types == entry.end() || !types->is_array() || types->empty() || !types->front().is_string()) continue;
    std::string type = types->front().get_ref<const std::string&>().substr(0, kType);
    std::ranges::transform(type, type.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    return type;
  }
  return {};
}

/// The bytes that all ranks of a correct call have in common; 0: none. Ranks of a gather or scatter have
/// different ones by right, and those of an all_to_all may have. An uneven all_gather differs in its inputs,
/// a reduce_scatter in its outputs.
std::uint64_t common_bytes(const std::string& kind, const std::string& type, const Json& entry) {
  const bool gathers =
      kind.find("all_gather") != std::string::npos || kind.find("allgather") != std::string::npos;
  const bool same_input = kind.starts_with("all_reduce") || kind.starts_with("allreduce") ||
                          kind.starts_with("broadcast") || kind.find("reduce_scatter") != std::string::npos ||
                          kind == "reduce";
  if (gathers) return elements(entry, "output_sizes") * element_bytes(type);
  return same_input ? elements(entry, "input_sizes") * element_bytes(type) : 0;
}

/// One operation of the record, or nothing: point-to-point, or not readable.
std::optional<RecordedCollective> collective_of(const Json& entry) {
  RecordedCollective collective;
  collective.sequence = number_at(entry, "collective_seq_id");
  if (is_true(entry, "is_p2p") || collective.sequence == 0) return std::nullopt;
  const std::string name = text_at(entry, "profiling_name", kKind + 8);  // "gloo:all_reduce"
  const std::size_t colon = name.find(':');
  collective.kind = name.substr(colon == std::string::npos ? 0 : colon + 1).substr(0, kKind);
  collective.kind.erase(0, collective.kind.find_first_not_of('_'));  // "_all_gather_base"
  collective.type = type_of(entry);
  collective.bytes = common_bytes(collective.kind, collective.type, entry);
  if (collective.bytes == 0) collective.type.clear();
  constexpr std::uint64_t kLatest = std::numeric_limits<std::int64_t>::max();
  collective.started = static_cast<std::int64_t>(std::min(number_at(entry, "time_created_ns"), kLatest));
  // gloo leaves the state at "scheduled" and the times at 0. "retired" is set by all back ends.
  if (is_true(entry, "retired") || text_at(entry, "state", kName) == "completed")
    collective.finished = std::max<std::int64_t>(
        static_cast<std::int64_t>(std::min(number_at(entry, "time_discovered_completed_ns"), kLatest)), 1);
  return collective;
}

using GroupsByName = std::map<std::string, RecordedGroup>;

/// Null: there are too many. Ranks that have called nothing in a group must give it the same name.
RecordedGroup* named_group(const std::string& name, const std::string& description, GroupsByName& groups) {
  if (!groups.contains(name) && groups.size() >= kMostGroups) return nullptr;
  RecordedGroup& group = groups[name];
  const bool plain = description.empty() || description == "undefined";
  group.name = description == "default_pg"
                   ? "world"
                   : "group " + name + (plain ? "" : " (" + description.substr(0, kName) + ")");
  return &group;
}

/// The group's names of the record: ["3", "mesh_dp"]. The first one is equal on all ranks.
RecordedGroup* group_of(const Json& entry, GroupsByName& groups) {
  const auto names = entry.find("process_group");
  if (names == entry.end() || !names->is_array() || names->empty() || !names->front().is_string())
    return nullptr;
  const std::string name = names->front().get_ref<const std::string&>().substr(0, kName);
  const bool described = names->size() > 1 && names->at(1).is_string();
  return named_group(name, described ? names->at(1).get_ref<const std::string&>() : "", groups);
}

/// Adds the members that the hook knows, and the groups in which the rank has not called anything yet.
void add_members(const std::string& text, int rank, int world_size, GroupsByName& groups) {
  const Json answer = Json::parse(text, nullptr, false);
  if (!answer.is_object()) return;
  std::size_t left = kMostMembersOfAll;
  for (const auto& [name, facts] : answer.items()) {
    const auto ranks = facts.is_object() ? facts.find("ranks") : facts.end();
    if (ranks == facts.end() || !ranks->is_array() || ranks->size() > std::min(left, kMostMembers)) continue;
    std::vector<int> members;
    for (const Json& member : *ranks) {
      if (member.is_number_unsigned() && member.get<std::uint64_t>() < static_cast<std::uint64_t>(world_size))
        members.push_back(member.get<int>());
    }
    std::ranges::sort(members);
    const auto [same, end] = std::ranges::unique(members);
    members.erase(same, end);
    if (members.size() != ranks->size() || !std::ranges::binary_search(members, rank)) continue;
    RecordedGroup* const group =
        named_group(name.substr(0, kName), text_at(facts, "description", kName), groups);
    if (group == nullptr) continue;
    left -= members.size();
    group->ranks = static_cast<int>(members.size());
    if (std::cmp_less(members.size(), world_size)) group->members = std::move(members);
  }
}

/// The operation that was started last is the one in which the rank gave up.
void reopen_last(GroupsByName& groups) {
  RecordedCollective* last = nullptr;
  for (auto& [name, group] : groups)
    for (RecordedCollective& entry : group.entries)
      if (last == nullptr || entry.started >= last->started) last = &entry;
  if (last != nullptr) last->finished = 0;
}

void trim(RecordedGroup& group, std::size_t before, std::size_t most) {
  std::vector<RecordedCollective>& entries = group.entries;
  std::ranges::stable_sort(entries, {}, &RecordedCollective::sequence);
  // Operations that are started together share a number: the last one stands for them, unfinished if one is.
  std::vector<RecordedCollective> single;
  for (RecordedCollective& entry : entries) {
    if (single.empty() || single.back().sequence != entry.sequence) {
      single.push_back(std::move(entry));
    } else {
      if (single.back().finished == 0) entry.finished = 0;
      single.back() = std::move(entry);
    }
  }
  const auto open = std::ranges::find(single, 0, &RecordedCollective::finished);
  const auto done = static_cast<std::size_t>(open - single.begin());
  single.erase(single.begin(), open - static_cast<std::ptrdiff_t>(std::min(before, done)));
  if (single.size() > most) single.resize(most);
  entries = std::move(single);
}

// ---- the stacks

struct Frame {
  std::string_view file;
  std::string_view line;
  std::string_view function;
};

/// `  File "train.py", line 41 in step`
std::optional<Frame> frame_of(std::string_view line) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kIn = " in ";
  if (!line.starts_with(kFile)) return std::nullopt;
  line.remove_prefix(kFile.size());
  const std::size_t end = line.find(kLine);
  if (end == std::string_view::npos) return std::nullopt;
  Frame frame{line.substr(0, end), {}, {}};
  line.remove_prefix(end + kLine.size());
  const std::size_t in = std::min(line.find(kIn), line.size());
  frame.line = line.substr(0, in);
  if (in < line.size()) frame.function = line.substr(in + kIn.size());
  return frame;
}

/// The frames of the main thread, the innermost one first: the last thread that is listed.
std::vector<Frame> main_frames(std::string_view stacks) {
  std::vector<Frame> frames;
  while (!stacks.empty()) {
    const std::size_t end = std::min(stacks.find('\n'), stacks.size());
    const std::string_view line = stacks.substr(0, end);
    stacks.remove_prefix(std::min(end + 1, stacks.size()));
    // Behind a hundred threads faulthandler leaves out the others, the main thread among them.
    if (line.starts_with("Thread ") || line.starts_with("Current thread ") || line == "...") frames.clear();
    if (const auto frame = frame_of(line)) frames.push_back(*frame);
  }
  return frames;
}

bool is_library(const Frame& frame) {
  constexpr std::array kPlaces = {"/site-packages/", "/dist-packages/", "/lib/python3", "<frozen "};
  return std::ranges::any_of(
      kPlaces, [&frame](const char* place) { return frame.file.find(place) != std::string_view::npos; });
}

/// Why a rank may be late, from a frame of a library; empty: the frame says nothing.
std::string_view phase_of(const Frame& frame) {
  const auto in = [&frame](std::string_view part) { return frame.file.find(part) != std::string_view::npos; };
  const auto called = [&frame](std::string_view part) {
    return frame.function.find(part) != std::string_view::npos;
  };
  if (in("torch/utils/data/")) return "in its data loader";
  if (in("torch/serialization.py") || in("torch/distributed/checkpoint/") || in("/safetensors/")) {
    if (called("save") || called("write")) return "writing a checkpoint";
    if (called("load") || called("read")) return "reading a checkpoint";
  }
  if (frame.file.ends_with("/threading.py")) {
    if (called("join")) return "waiting for a thread";
    if (called("wait") || called("acquire") || called("__enter__")) return "waiting for a lock";
  }
  if (frame.file.ends_with("/multiprocessing/synchronize.py")) return "waiting for a lock";
  if (frame.file.ends_with("/queue.py")) return "waiting for a queue";
  return {};
}

/// The collective of PyTorch in which the main thread is, as the script has called it; empty: none.
std::string collective_by_stacks(std::string_view stacks) {
  std::string called;
  for (const Frame& frame : main_frames(stacks)) {
    // A gradient's all-reduce is waited for in native code.
    if (called.empty() && frame.function == "backward" &&
        (frame.file.ends_with("torch/_tensor.py") || frame.file.ends_with("torch/autograd/__init__.py")))
      called = "backward";
    // DistributedDataParallel broadcasts buffers in each forward, and the weights when it is made.
    if (called.empty() && frame.file.ends_with("torch/nn/parallel/distributed.py") &&
        frame.function.find("broadcast_coalesced") != std::string_view::npos)
      called = "forward";
    if (called.empty() && frame.file.ends_with("torch/distributed/utils.py") &&
        (frame.function == "_sync_params_and_buffers" ||
         frame.function == "_verify_param_shape_across_processes"))
      called = "DistributedDataParallel";
    if (frame.file.ends_with("torch/distributed/distributed_c10d.py"))
      called = frame.function.substr(0, kKind);
  }
  return called;
}

/// The group of a rank that has no process group yet: it waits in init_process_group, or has not called it.
RecordedGroup joining_group(std::string_view stacks, int world_size) {
  const std::vector<Frame> frames = main_frames(stacks);
  const bool joins = std::ranges::any_of(frames, [](const Frame& frame) {
    return frame.function == kJoining && frame.file.ends_with("torch/distributed/distributed_c10d.py");
  });
  RecordedGroup group{std::string(kJoining), 0, world_size, {}};
  if (joins) group.entries.push_back({1, std::string(kJoining), 0, "", 0, 0});
  return group;
}

}  // namespace

std::optional<std::string_view> http_body(std::string_view answer) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const std::size_t end = answer.find(kEnd);
  if (!answer.starts_with("HTTP/1.1 200") || end == std::string_view::npos) return std::nullopt;
  const std::string_view head = answer.substr(0, end);
  const std::string_view body = answer.substr(end + kEnd.size());
  const std::size_t at = head.find(kLength);
  if (at == std::string_view::npos) return std::nullopt;
  std::size_t length = 0;
  const char* const digits = head.data() + at + kLength.size();
  const auto parsed = std::from_chars(digits, head.data() + head.size(), length);
  if (parsed.ec != std::errc() || length > body.size()) return std::nullopt;
  return body.substr(0, length);
}

std::string script_place(std::string_view stacks) {
  const std::vector<Frame> frames = main_frames(stacks);
  if (frames.empty()) return {};
  std::string_view phase;
  auto here = frames.begin();
  for (; here != frames.end() && is_library(*here); ++here) {
    // The outermost library that says something was called by the script: a data loader waits for a queue.
    if (const std::string_view found = phase_of(*here); !found.empty()) phase = found;
  }
  if (here == frames.end()) here = frames.begin();  // a program that is installed as a library
  std::string place = phase.empty() ? "" : std::string(phase) + ", ";
  place += "at " + std::string(here->file.substr(here->file.rfind('/') + 1)) + ":" + std::string(here->line);
  if (!here->function.empty() && here->function != "<module>") place += " in " + std::string(here->function);
  return place.substr(0, kPlace);
}

std::optional<FlightRecorderDump> read_torch_answers(const TorchAnswers& answers, FlightRecorderDump identity,
                                                     std::size_t before, std::size_t most) {
  identity.place = script_place(answers.stacks);
  const Json record = Json::parse(answers.record, nullptr, false);
  const auto entries = record.is_object() ? record.find("entries") : record.end();
  const bool has_entries = record.is_object() && entries != record.end() && entries->is_array();
  // A rank that has called nothing yet has a record without this member.
  const bool readable = has_entries || (record.is_object() && entries == record.end() &&
                                        !text_at(record, "version", kName).empty());
  if (!readable && identity.place.empty()) return std::nullopt;
  if (answers.lacks_gil) identity.place = "probably in a native call that holds the GIL";
  if (!readable && !answers.stacks.empty()) {
    RecordedGroup group{std::string(kByStacks), 0, identity.world_size, {}};
    if (std::string called = collective_by_stacks(answers.stacks); !called.empty())
      group.entries.push_back({kUnnumbered, std::move(called), 0, "", 0, 0});
    identity.groups.push_back(std::move(group));
    return identity;
  }
  GroupsByName groups;
  if (has_entries) {
    for (const Json& entry : *entries) {
      if (!entry.is_object()) continue;
      auto collective = collective_of(entry);
      RecordedGroup* const group = collective ? group_of(entry, groups) : nullptr;
      if (group != nullptr) group->entries.push_back(std::move(*collective));
    }
  }
  if (readable) {
    add_members(answers.groups, identity.rank, identity.world_size, groups);
    if (answers.gave_up) reopen_last(groups);
    // The ranks meet there, which PyTorch does not record. Stacks tell it.
    if (groups.empty() && !identity.place.empty())
      identity.groups.push_back(joining_group(answers.stacks, identity.world_size));
  }
  if (groups.empty() && identity.groups.empty() && identity.place.empty()) return std::nullopt;
  std::size_t left = kMostEntries;
  for (auto& [name, group] : groups) {
    trim(group, before, std::min(most, left));
    left -= group.entries.size();
    if (group.name == "world") group.ranks = identity.world_size;
    identity.groups.push_back(std::move(group));
  }
  return identity;
}

}  // namespace ddp::rendezvous
