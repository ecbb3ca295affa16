#include "launcher/report/exit_code.h"

#include <cerrno>
#include <csignal>

namespace ddp::launcher {

const std::vector<ExitCodeRow>& exit_code_table() {
  static const std::vector<ExitCodeRow> table{
      {ErrorCode::kUsage, "Usage", 2, "the command line or a file it names is wrong; nothing was started"},
      {ErrorCode::kInternal, "Internal", kInternalExit, "internal error of ddplaunch (please report)"},
      {ErrorCode::kProtocol, "Protocol", kInternalExit, "an agent sent what the protocol does not allow"},
      {ErrorCode::kUnreachable, "Unreachable", 111, "a host could not be resolved, reached or logged in to"},
      {ErrorCode::kTimeout, "Timeout", 112, "the job did not start in time"},
      {ErrorCode::kLinkLost, "LinkLost", 113, "a node was lost while the job ran"},
      {ErrorCode::kAgentMissing, "AgentMissing", 114, "a host has no ddplaunchd at the expected path"},
      {ErrorCode::kAgentMismatch, "AgentMismatch", 114,
       "a host's ddplaunchd has another version than this ddplaunch"},
      {ErrorCode::kRefused, "Refused", 115, "a node refused the job in its check before the start"},
      {ErrorCode::kSystem, "System", 116, "the operating system refused something that ddplaunch needs"},
      {ErrorCode::kHung, "Hung", 117, "no worker printed anything or used CPU time for --hang-timeout, or a line of --watch told of a hang"},
      {ErrorCode::kExec, "Exec", 126, "the worker's program could not be executed (127: not found)"},
      {ErrorCode::kCancelled, "Cancelled", 143, "stopped on request"},
  };
  return table;
}

int exit_code_of(const Error& error) {
  if (error.code == ErrorCode::kExec) return exec_exit_code(error.sys);
  if (error.code == ErrorCode::kCancelled && error.sys > 0 && error.sys < NSIG) return 128 + error.sys;
  for (const ExitCodeRow& row : exit_code_table()) {
    if (row.error == error.code) return row.exit_code;
  }
  return kInternalExit;
}

int exec_exit_code(int sys) {
  return sys == ENOENT || sys == ENOTDIR ? 127 : 126;
}

}  // namespace ddp::launcher
