#pragma once

#include <set>
#include <string>
#include <vector>

#include "rendezvous/flight_recorder/flight_recorder.h"

namespace ddp::rendezvous {

/// What the logs of all ranks say together.
struct DesyncVerdict {
  /// Which rank the others wait for, or which called another operation, in one line without its end and
  /// without control characters: "rank 3 has not started all-reduce 517 (116 KB) that ranks 0-2 wait in"; of
  /// node 0's ranks "all-reduce 5 (116 KB) of node 0". Empty: the logs show no operation that is not finished
  /// everywhere.
  std::string text;
  std::set<int> named;  ///< who is missed, or called another operation; empty: all wait in the same one
  /// Ranks wait in an operation that others have not come to, or called another. Otherwise some are only
  /// later than others, which says something once no rank moves any more.
  bool waited_for = false;
};

/// Of the newest attempt. `ended`: ranks of it that have ended well and may have left no log. Where several
/// groups stand still, that one counts in which a rank is missed that waits in no other.
DesyncVerdict analyze_desync(const std::vector<FlightRecorderDump>& dumps, const std::set<int>& ended = {});

}  // namespace ddp::rendezvous
