#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::launcher {

/// The first lines on an authenticated link of per-node mode, before the agent's hello line
/// (docs/developers/protocol.md). The node describes itself; the master assigns a slot or says why not. Text
/// lines; sans-IO.
inline constexpr std::size_t kMaxJoinLine = 1024;

struct JoinRequest {
  int protocol = 0;
  std::string version;
  std::optional<int> rank;  ///< --node-rank; unset: any
  int nodes = 0;            ///< --nnodes; 0: not given
};
/// "ddplaunch-join PROTOCOL VERSION RANK|- NODES\n"
std::string request_line(const JoinRequest& request);
/// `line` has no newline. Error: kProtocol.
Result<JoinRequest> parse_request(std::string_view line);

enum class JoinRefusal : std::uint8_t {
  kTaken,         ///< another node with this rank has joined
  kOutOfRange,    ///< the job has no such rank
  kFull,          ///< all ranks are taken
  kOtherSize,     ///< --nnodes differs
  kOtherVersion,  ///< another version of ddplaunch
};

struct JoinAnswer {
  std::optional<int> rank;  ///< the slot's rank; unset: refused
  std::string job_id;       ///< with a slot: the job's name at the master
  JoinRefusal refusal = JoinRefusal::kTaken;
  std::string text;  ///< with a refusal: text for the node's user
};
/// "ddplaunch-slot RANK JOB\n" or "ddplaunch-refused WORD TEXT\n"
std::string answer_line(const JoinAnswer& answer);
/// The texts of the answer are one line each, safe for a terminal.
Result<JoinAnswer> parse_answer(std::string_view line);

/// The name of a node before its own name is known: "node3".
std::string join_host_name(int rank);
std::optional<int> join_host_rank(std::string_view name);

}  // namespace ddp::launcher
