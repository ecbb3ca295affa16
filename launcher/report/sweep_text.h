#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddp::launcher {

/// What the search for processes of a lost node found, as the end of a sentence about its host: "nothing of
/// the job was left there".
std::string swept_text(std::size_t found, const std::vector<std::string>& left, const std::string& job_id);

/// Why nobody searched there, and the command to run. `reachable`: `ddplaunch clean` can reach the host.
std::string not_swept_text(const std::string& why, const std::string& job_id, bool reachable);

}  // namespace ddp::launcher
