#pragma once

#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ddp {

/// Reads the events that a job adds to its journal (docs/users/journal.md): from now on, or `from_begin` of
/// the present file. Blocks on the disk.
class JournalTail {
 public:
  explicit JournalTail(const std::string& directory, bool from_begin = false);

  /// Returns the lines since the last call, also when a full journal was replaced by a new one.
  std::vector<std::string> new_lines();

 private:
  void read_rest(std::vector<std::string>& lines);
  bool was_replaced() const;

  std::string path_;
  UniqueFd fd_;
  std::string rest_;  ///< the beginning of a line
};

/// Returns an event for people: "attempt 1: rank exited, gpu02, rank 5: exited 3". Empty: it is none.
std::string event_text(const std::string& line);

}  // namespace ddp
