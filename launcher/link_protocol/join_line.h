#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddp::launcher {

/// The first words on a proven link of per-node mode, before the agent's hello line (docs/protocol.md): the
/// node says what it is, the master gives it its place or says why not. Text lines; sans-IO.
inline constexpr std::size_t kMaxJoinLine = 1024;

struct JoinRequest {
  int protocol = 0;
  std::string version;
  std::optional<int> rank;  ///< --node-rank; unset: any
  int nodes = 0;            ///< --nnodes; 0: not told
};
/// "ddplaunch-join PROTOCOL VERSION RANK|- NODES\n"
std::string request_line(const JoinRequest& request);
/// Without the newline. kProtocol.
Result<JoinRequest> parse_request(std::string_view line);

enum class JoinRefusal : std::uint8_t {
  kTaken,         ///< another one with this rank is there
  kOutOfRange,    ///< the job has no such rank
  kFull,          ///< all ranks are taken
  kOtherSize,     ///< --nnodes differs
  kOtherVersion,  ///< of ddplaunch
};

struct JoinAnswer {
  std::optional<int> rank;  ///< the place; unset: refused
  std::string job_id;       ///< with a place: the job's name at the master
  JoinRefusal refusal = JoinRefusal::kTaken;
  std::string text;  ///< with a refusal: for the user of the node
};
/// "ddplaunch-slot RANK JOB\n" or "ddplaunch-refused WORD TEXT\n"
std::string answer_line(const JoinAnswer& answer);
/// Its texts are one line each, fit for a terminal.
Result<JoinAnswer> parse_answer(std::string_view line);

/// The name of a node in the job before it has said its own: "node3".
std::string join_host_name(int rank);
std::optional<int> join_host_rank(std::string_view name);

}  // namespace ddp::launcher
