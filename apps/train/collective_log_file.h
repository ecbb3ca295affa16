#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "apps/train/collective_log.h"
#include "base/result.h"

namespace ddp::train {

/// The logs of one rank's communicators, and the file that they are written to when an operation of one
/// fails: `directory`/rank-R.jsonl (of a later attempt A: rank-R.attempt-A.jsonl). After that first failure
/// nothing is an operation. What cannot be written is said on stderr. One thread.
class CollectiveLogFile {
 public:
  /// Clears away what an earlier job of this rank left there.
  CollectiveLogFile(const std::string& directory, int rank, int world_size, std::uint32_t attempt);

  /// Of a communicator that `ranks` ranks call; lives as long as this. `name`: LoggedGroup::name.
  CollectiveLog& open_group(const std::string& name, int ranks);
  bool has_failed() const { return failed_; }
  void fail(const Error& error);

 private:
  struct Group {
    std::string name;
    int ranks = 0;
    CollectiveLog log;
  };

  std::string path_;  ///< empty: it cannot be written
  int rank_;
  int world_size_;
  std::uint32_t attempt_;
  std::deque<Group> groups_;  ///< what lies in it does not move
  bool failed_ = false;
};

/// What the files in a directory say together (missing_collective()), for a person.
Result<std::string> read_collective_logs(const std::string& directory);

}  // namespace ddp::train
