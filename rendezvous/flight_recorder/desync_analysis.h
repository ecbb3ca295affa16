#pragma once

#include <set>
#include <string>
#include <vector>

#include "rendezvous/flight_recorder/flight_recorder.h"

namespace ddp::rendezvous {

/// The result of comparing the logs of all ranks.
struct DesyncVerdict {
  /// Names the rank that the others wait for, or that called another operation. One line without line end and
  /// without control characters: "rank 3 has not started all-reduce 517 (116 KB) that ranks 0-2 wait in"; for
  /// a group of node 0, "all-reduce 5 (116 KB) of node 0". Empty: every logged operation is finished on all
  /// ranks.
  std::string text;
  std::set<int> named;  ///< missing ranks, or those in another operation; empty: all wait in one
  /// True: ranks wait in an operation that others have not started, or ranks called different operations.
  /// False: some ranks are only later than others, which means something only once no rank makes progress.
  bool waited_for = false;
};

/// Analyzes the newest attempt. `ended`: its ranks that have ended normally and may have left no log. If
/// several groups make no progress, the verdict is about a group with a missing rank that waits in no other
/// group.
DesyncVerdict analyze_desync(const std::vector<FlightRecorderDump>& dumps, const std::set<int>& ended = {});

}  // namespace ddp::rendezvous
