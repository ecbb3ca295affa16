#include "launcher/link_protocol/join_table.h"

#include <array>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {
namespace {

constexpr std::string_view kJoin = "ddplaunch-join ";
constexpr std::string_view kSlot = "ddplaunch-slot ";
constexpr std::string_view kRefused = "ddplaunch-refused ";
constexpr std::string_view kNode = "node";
constexpr std::size_t kMaxText = 800;

constexpr std::array<std::pair<JoinRefusal, std::string_view>, 5> kWords = {{
    {JoinRefusal::kTaken, "taken"},
    {JoinRefusal::kOutOfRange, "range"},
    {JoinRefusal::kFull, "full"},
    {JoinRefusal::kOtherSize, "size"},
    {JoinRefusal::kOtherVersion, "version"},
}};

Error foreign(std::string_view line) {
  return Error{ErrorCode::kProtocol, "unknown line: " + one_line(std::string(line.substr(0, 80))), 0};
}

/// Removes the next word from `rest` and returns it.
std::string_view take_word(std::string_view& rest) {
  const std::string_view word = rest.substr(0, rest.find(' '));
  rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  return word;
}

std::optional<int> number(std::string_view word) {
  const auto value = parse_number<int>(word);
  return value && *value >= 0 ? value : std::nullopt;
}

JoinAnswer refused(JoinRefusal why, std::string text) {
  JoinAnswer answer;
  answer.refusal = why;
  answer.text = std::move(text);
  return answer;
}

}  // namespace

std::string request_line(const JoinRequest& request) {
  DDP_REQUIRE(!request.version.empty() && request.version.find(' ') == std::string::npos, request.version);
  return std::string(kJoin) + std::to_string(request.protocol) + ' ' + request.version + ' ' +
         (request.rank ? std::to_string(*request.rank) : "-") + ' ' + std::to_string(request.nodes) + '\n';
}

Result<JoinRequest> parse_request(std::string_view line) {
  if (!line.starts_with(kJoin)) return foreign(line);
  std::string_view rest = line.substr(kJoin.size());
  JoinRequest request;
  const auto protocol = number(take_word(rest));
  request.version = take_word(rest);
  const std::string_view rank = take_word(rest);
  request.rank = number(rank);
  const auto nodes = number(rest);
  if (!protocol || request.version.empty() || (!request.rank && rank != "-") || !nodes) return foreign(line);
  request.protocol = *protocol;
  request.nodes = *nodes;
  return request;
}

std::string answer_line(const JoinAnswer& answer) {
  DDP_REQUIRE(!answer.rank || (*answer.rank >= 0 && !answer.job_id.empty()), *answer.rank, answer.job_id);
  if (answer.rank) return std::string(kSlot) + std::to_string(*answer.rank) + ' ' + answer.job_id + '\n';
  std::string line(kRefused);
  for (const auto& [refusal, word] : kWords) {
    if (refusal == answer.refusal) line += word;
  }
  return line + ' ' + one_line(answer.text).substr(0, kMaxText) + '\n';
}

Result<JoinAnswer> parse_answer(std::string_view line) {
  JoinAnswer answer;
  if (line.starts_with(kSlot)) {
    std::string_view rest = line.substr(kSlot.size());
    answer.rank = number(take_word(rest));
    answer.job_id = one_line(rest);
    if (!answer.rank || rest.empty()) return foreign(line);
    return answer;
  }
  if (!line.starts_with(kRefused)) return foreign(line);
  std::string_view rest = line.substr(kRefused.size());
  const std::string_view word = take_word(rest);
  answer.text = one_line(rest);
  for (const auto& [refusal, name] : kWords) {
    if (name != word) continue;
    answer.refusal = refusal;
    return answer;
  }
  return foreign(line);
}

std::string join_host_name(int rank) {
  return std::string(kNode) + std::to_string(rank);
}

std::optional<int> join_host_rank(std::string_view name) {
  if (!name.starts_with(kNode)) return std::nullopt;
  return number(name.substr(kNode.size()));
}

/// Returns a refusal if the request itself is invalid.
std::optional<JoinAnswer> JoinTable::unfit(const JoinRequest& request) const {
  if (request.protocol != terms_.protocol || request.version != terms_.version) {
    return refused(JoinRefusal::kOtherVersion, "the master is ddplaunch " + terms_.version + " (protocol " +
                                                   std::to_string(terms_.protocol) + "), this node's is " +
                                                   request.version + " (protocol " +
                                                   std::to_string(request.protocol) +
                                                   "); install the same version on all nodes");
  }
  if (request.nodes != 0 && request.nodes != terms_.nodes) {
    return refused(JoinRefusal::kOtherSize,
                   "the job has " + std::to_string(terms_.nodes) + " nodes according to its master, but " +
                       std::to_string(request.nodes) +
                       " according to this node; use the same --nnodes (and --spares) on all nodes");
  }
  if (!request.rank) return std::nullopt;
  if (*request.rank >= terms_.nodes) {
    return refused(JoinRefusal::kOutOfRange, "node rank " + std::to_string(*request.rank) +
                                                 " is not one of 0 … " + std::to_string(terms_.nodes - 1) +
                                                 "; the job has " + std::to_string(terms_.nodes) + " nodes");
  }
  if (*request.rank == 0) {
    return refused(JoinRefusal::kTaken,
                   "node rank 0 is the master's own node; give each node its own --node-rank");
  }
  return std::nullopt;
}

/// Returns whether the holder keeps its slot against `peer`.
bool JoinTable::holds(const JoinSlot& slot, const JoiningPeer& peer, Time now) const {
  if (!slot.live) return false;
  // A waiting node has no heartbeats. The next process of its own machine takes its slot.
  if (slot.waiting) return slot.holder.name != peer.name;
  return now - slot.heard < kFresh;
}

std::vector<int> JoinTable::about(const JoinRequest& request, const JoiningPeer& peer) const {
  std::vector<int> ranks;
  if (request.rank) {
    if (*request.rank > 0 && *request.rank < terms_.nodes) ranks.push_back(*request.rank);
  } else if (unused_ < slots_.size()) {
    const auto had = had_.find(peer.name);
    if (had != had_.end()) ranks.assign(had->second.begin(), had->second.end());
  } else {
    for (int rank = 1; rank < terms_.nodes; ++rank)
      ranks.push_back(rank);
  }
  return ranks;
}

std::optional<int> JoinTable::free_slot(const JoiningPeer& peer, Time now) const {
  // Several nodes may run on one machine, so a waiting slot of that machine may belong to another node.
  const auto is_free = [&](int rank) {
    const JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
    return slot.incarnation != 0 && !slot.waiting && !holds(slot, peer, now);
  };
  if (const auto had = had_.find(peer.name); had != had_.end()) {
    for (const int rank : had->second) {
      if (slots_[static_cast<std::size_t>(rank)].holder.name == peer.name && is_free(rank)) return rank;
    }
  }
  if (unused_ < slots_.size()) return static_cast<int>(unused_);
  for (int rank = 1; rank < terms_.nodes; ++rank) {
    if (is_free(rank)) return rank;
  }
  return std::nullopt;
}

JoinTable::Decision JoinTable::join(const JoinRequest& request, const JoiningPeer& peer, Time now) {
  Decision decision;
  if (auto refusal = unfit(request)) {
    decision.answer = std::move(*refusal);
    return decision;
  }
  const auto rank = request.rank ? request.rank : free_slot(peer, now);
  if (!rank) {
    decision.answer = refused(JoinRefusal::kFull, "all " + std::to_string(terms_.nodes) +
                                                      " nodes of the job have joined already; start no more "
                                                      "than --nnodes says");
    return decision;
  }
  JoinSlot& slot = slots_[static_cast<std::size_t>(*rank)];
  if (holds(slot, peer, now)) {
    decision.answer =
        refused(JoinRefusal::kTaken, "node rank " + std::to_string(*rank) + " has already joined, from " +
                                         slot.holder.address + "; give each node its own --node-rank");
    return decision;
  }
  DDP_REQUIRE(*rank > 0 && *rank < terms_.nodes, *rank, terms_.nodes);  // 0 is the master's own
  decision.displaces = slot.live;
  slot = JoinSlot{peer, ++incarnations_, true, true, now};
  had_[peer.name].insert(*rank);
  while (unused_ < slots_.size() && slots_[unused_].incarnation != 0)
    ++unused_;
  decision.incarnation = slot.incarnation;
  decision.answer.rank = *rank;
  decision.answer.job_id = terms_.job_id;
  return decision;
}

void JoinTable::opened(int rank, Time now) {
  JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
  slot.waiting = false;
  slot.heard = now;
}

void JoinTable::heard(int rank, Time when) {
  JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
  if (when > slot.heard) slot.heard = when;
}

void JoinTable::ended(int rank, std::size_t incarnation) {
  JoinSlot& slot = slots_[static_cast<std::size_t>(rank)];
  if (slot.incarnation == incarnation) slot.live = slot.waiting = false;
}

}  // namespace ddp::launcher
