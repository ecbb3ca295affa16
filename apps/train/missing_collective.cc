#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "apps/train/collective_log.h"

// missing_collective(): what the logs of all ranks say together.

namespace ddp::train {

namespace {

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1'000) return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes");
  char text[32];
  if (bytes < 1'000'000) {
    std::snprintf(text, sizeof text, "%.0f KB", static_cast<double>(bytes) / 1e3);
  } else {
    std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(bytes) / 1e6);
  }
  return text;
}

/// "rank 3", "ranks 0-2", "ranks 0, 2 and 5".
std::string ranks_text(const std::set<int>& ranks) {
  std::vector<std::string> words;
  for (auto at = ranks.begin(); at != ranks.end();) {
    const int first = *at;
    int last = first;
    for (++at; at != ranks.end() && *at == last + 1; ++at)
      last = *at;
    if (last > first + 1) {
      words.push_back(std::to_string(first) + "-" + std::to_string(last));
    } else {
      words.push_back(std::to_string(first));
      if (last != first) words.push_back(std::to_string(last));
    }
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

const char* wait_text(const std::set<int>& ranks) {
  return ranks.size() == 1 ? " waits in" : " wait in";
}
const char* have_text(const std::set<int>& ranks) {
  return ranks.size() == 1 ? " has" : " have";
}

/// "all-reduce 517 (116 KB)"; a barrier has no size.
std::string collective_text(const LoggedCollective& entry) {
  const std::string text = std::string(kind_text(entry.kind)) + " " + std::to_string(entry.sequence);
  return entry.kind == CollectiveKind::kBarrier ? text : text + " (" + size_text(entry.bytes) + ")";
}

using Called = std::tuple<CollectiveKind, std::uint64_t, std::string>;
Called called(const LoggedCollective& entry) {
  return {entry.kind, entry.bytes, entry.type};
}
/// With its type where the types alone differ.
std::string called_text(const LoggedCollective& entry, const LoggedCollective& other) {
  const std::string text = collective_text(entry);
  if (entry.kind != other.kind || entry.bytes != other.bytes) return text;
  return text + " of " + entry.type;
}

/// By sequence, which rank called what.
using BySequence = std::map<std::uint64_t, std::map<int, LoggedCollective>>;

/// The first operation that is not the same on all ranks.
std::string different_collective(const BySequence& sequences) {
  for (const auto& [sequence, by_rank] : sequences) {
    std::map<Called, std::set<int>> groups;
    for (const auto& [rank, entry] : by_rank)
      groups[called(entry)].insert(rank);
    if (groups.size() < 2) continue;
    // Most ranks are right; among equals, those with the lowest rank.
    const auto right = std::ranges::max_element(groups, [](const auto& a, const auto& b) {
      return std::pair(a.second.size(), -*a.second.begin()) < std::pair(b.second.size(), -*b.second.begin());
    });
    const LoggedCollective& theirs = by_rank.at(*right->second.begin());
    std::string text;
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      if (group == right) continue;
      text += (text.empty() ? "" : ", ") + ranks_text(group->second) + " called " +
              called_text(by_rank.at(*group->second.begin()), theirs);
    }
    const LoggedCollective& ours =
        by_rank.at(*(groups.begin() == right ? std::next(right) : groups.begin())->second.begin());
    return text + " where " + ranks_text(right->second) + " called " + called_text(theirs, ours);
  }
  return "";
}

struct Standing {
  std::set<int> waiting, behind, done;
};

/// Who has done what of one operation. A rank that has gone further than its ring remembers has done it.
Standing standing_of(const std::map<int, LoggedCollective>& by_rank, std::uint64_t sequence,
                     const std::map<int, std::uint64_t>& last) {
  Standing standing;
  for (const auto& [rank, newest] : last) {
    const auto found = by_rank.find(rank);
    if (found == by_rank.end()) {
      (newest < sequence ? standing.behind : standing.done).insert(rank);
    } else {
      (found->second.finished == 0 ? standing.waiting : standing.done).insert(rank);
    }
  }
  return standing;
}

std::string verdict(const LoggedCollective& entry, const Standing& standing, const std::set<int>& silent) {
  const std::string name = collective_text(entry);
  if (!standing.behind.empty()) {
    const std::string others = standing.waiting.empty()
                                   ? ranks_text(standing.done) + have_text(standing.done) + " finished"
                                   : ranks_text(standing.waiting) + wait_text(standing.waiting);
    return ranks_text(standing.behind) + have_text(standing.behind) + " not started " + name + " that " +
           others;
  }
  if (!silent.empty()) {
    return ranks_text(silent) + " left no log; " + ranks_text(standing.waiting) +
           wait_text(standing.waiting) + " " + name;
  }
  if (!standing.done.empty()) {
    return ranks_text(standing.waiting) + have_text(standing.waiting) + " not finished " + name + " that " +
           ranks_text(standing.done) + have_text(standing.done) + " finished";
  }
  return "all ranks wait in " + name + ": it is the way between them that fails, not one of them";
}

}  // namespace

std::string missing_collective(const std::vector<CollectiveDump>& dumps) {
  std::uint32_t attempt = 0;
  for (const CollectiveDump& dump : dumps)
    attempt = std::max(attempt, dump.attempt);
  BySequence sequences;
  std::map<int, std::uint64_t> last;
  int world = 0;
  for (const CollectiveDump& dump : dumps) {
    if (dump.attempt != attempt) continue;
    world = std::max(world, dump.world_size);
    last[dump.rank] = dump.entries.empty() ? 0 : dump.entries.back().sequence;
    for (const LoggedCollective& entry : dump.entries)
      sequences[entry.sequence][dump.rank] = entry;
  }
  if (std::string text = different_collective(sequences); !text.empty()) return text;
  std::set<int> silent;
  for (int rank = 0; rank < world; ++rank) {
    if (!last.contains(rank)) silent.insert(rank);
  }
  std::string all_wait;
  for (const auto& [sequence, by_rank] : sequences) {
    const Standing standing = standing_of(by_rank, sequence, last);
    // A rank without a log may have done what the others have; those that wait tell where it stands.
    if (standing.waiting.empty() && standing.behind.empty()) continue;
    const std::string text = verdict(by_rank.begin()->second, standing, silent);
    // Of operations under way at once a later one may tell who has stopped.
    if (standing.waiting.size() < last.size())
      return all_wait.empty() || !standing.behind.empty() ? text : all_wait;
    if (all_wait.empty()) all_wait = text;
  }
  return all_wait;
}

}  // namespace ddp::train
