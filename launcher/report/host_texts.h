#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/report/job_end.h"

namespace ddp::launcher {

/// Returns "gpu01", "gpu01 and gpu02" or "gpu01, gpu02, gpu03, gpu04 and 12 more hosts".
std::string host_list(const std::vector<std::string>& hosts);

/// What the search for processes of a lost node found, as the end of a sentence about its host: "nothing of
/// the job was left there".
std::string swept_text(std::size_t found, const std::vector<std::string>& left, const std::string& job_id);

/// Why nobody searched there, and the command to run. `reachable`: `ddplaunch clean` can reach the host.
std::string not_swept_text(const std::string& why, const std::string& job_id, bool reachable);

/// True for a node that never became ready. Several such failures are independent, and each needs its own
/// fix.
bool is_start_failure(const Failure& failure);

/// Nodes that did not become ready for the same reason.
struct StartGroup {
  std::vector<std::string> hosts;
  std::vector<std::string> words;  ///< of the reason; "…" is in the place of what differs
};

/// Starts a group with the reason `text` of one host.
StartGroup make_group(const std::string& host, const std::string& text);

/// Adds the host to the group if `text` differs from the group's reason only in words that identify the host.
/// Returns whether it does.
bool join_group(StartGroup& group, const std::string& host, const std::string& text);

/// Adds the host to the first group that it can join, or makes a new one at the end. Returns the group's
/// index. Very different texts of very many hosts get a group each.
std::size_t add_to_groups(std::vector<StartGroup>& groups, const std::string& host, const std::string& text);

/// Returns the group's hosts in ranges, or the first of very many.
std::string group_hosts_text(StartGroup group);

std::string reason_text(const StartGroup& group);

/// Returns the start failures with equal reasons together, that of `cause` first.
std::vector<StartGroup> start_groups(const JobEnd& end, const Failure& cause);

/// Returns "node gpu07: " or "nodes gpu[01-12]: ", and the reason.
std::string start_text(const StartGroup& group);

}  // namespace ddp::launcher
