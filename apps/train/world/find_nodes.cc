#include "apps/train/world/find_nodes.h"

#include <charconv>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

namespace ddp::train {

namespace {

/// The ranks of a node, as its first rank reports them.
struct NodeRankRange {
  int first = 0;
  int count = 0;
};

std::string encode(const NodeRankRange& ranks) {
  return std::to_string(ranks.first) + " " + std::to_string(ranks.count);
}

std::optional<NodeRankRange> decode(std::string_view text) {
  NodeRankRange ranks;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, ranks.first);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
  const auto count = std::from_chars(first.ptr + 1, end, ranks.count);
  if (count.ec != std::errc() || count.ptr != end || ranks.first < 0 || ranks.count < 1) return std::nullopt;
  return ranks;
}

}  // namespace

Result<NodeMap> find_nodes(const WorkerEnvironment& environment, std::chrono::milliseconds start_timeout,
                           PeerDirectory& directory) {
  NodeMap map;
  map.node = environment.node;
  map.local_rank = environment.local_rank;
  const auto key = [](int node) { return "node/" + std::to_string(node); };
  if (environment.local_rank == 0) {
    auto published =
        directory.share(key(environment.node), encode({environment.rank, environment.local_world_size}));
    if (!published) return within(rank_text(environment), published.error());
  }
  for (int node = 0, known = 0; known < environment.world_size; ++node) {
    const auto text = directory.find(key(node), start_timeout);
    if (!text && text.error().code == ErrorCode::kTimeout) {
      return Error{ErrorCode::kTimeout,
                   rank_text(environment) + " cannot find node " + std::to_string(node) +
                       ": its first rank has not reached the store in time; check that it started"};
    }
    if (!text) return within(rank_text(environment), text.error());
    const auto ranks = decode(*text);
    if (!ranks)
      return Error{ErrorCode::kProtocol,
                   rank_text(environment) + ": node " + key(node) + " is \"" + *text + "\""};
    map.ranks.emplace_back(static_cast<std::size_t>(ranks->count));
    std::iota(map.ranks.back().begin(), map.ranks.back().end(), ranks->first);
    known += ranks->count;
  }
  const bool mine =
      static_cast<std::size_t>(map.node) < map.ranks.size() &&
      static_cast<std::size_t>(map.local_rank) < map.ranks[static_cast<std::size_t>(map.node)].size() &&
      map.rank() == environment.rank;
  if (mine && map.world_size() == environment.world_size) return map;
  return Error{ErrorCode::kUsage,
               rank_text(environment) +
                   ": RANK contradicts GROUP_RANK, LOCAL_RANK and LOCAL_WORLD_SIZE: "
                   "the ranks of a node must be consecutive; --comm tcp works without this"};
}

}  // namespace ddp::train
