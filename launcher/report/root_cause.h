#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/job_end.h"

namespace ddp::launcher {

/// What a failure looks like, best cause first. Text that a worker printed is looked at here and nowhere
/// else, and only to choose between failures.
enum class Blame : std::uint8_t {
  kOwn,         ///< it failed by itself: a crash, the memory killer, an exception, an exit code, no program
  kTerminated,  ///< somebody else told it to end
  kEcho,        ///< it noticed that a peer is gone: a watchdog, "Connection reset by peer", SIGPIPE
  kNode,        ///< a whole node
};
Blame blame_of(const Failure& failure);

/// The failure that the others follow from; unset when all were stopped by us or there is none.
///
/// It is the earliest by corrected time. Where the clocks cannot tell which of several came first (their
/// margins overlap, or less than 0.5 ms are between them, in which an agent may notice an end late; ends on
/// one node are in the order in which its agent saw them), `blame_of` decides, then the time.
///
/// A failure that only noticed a dead peer names no cause, and often ends before it: the sockets of a process
/// close before its core is written and its GPUs are given back. So after such a one a failure that came
/// by itself up to 2 s later goes before it, also when our stop was already on its way; or, without one, a
/// rank that somebody else told to end, or the loss of a node, in that time.
std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures);

/// What a signal usually means, and where to look: "it used memory that is not its own (…)". Empty: nothing
/// to add to its name.
std::string signal_meaning(const Failure& failure);

/// What an Xid line of the NVIDIA driver ("NVRM: Xid (PCI:0000:65:00): 79, …") means for the user; empty: an
/// error of which we know nothing.
std::string xid_meaning(const std::string& line);

/// What to do about a root cause, where its stderr shows a known pattern; empty: nothing known.
std::string hint_for(const Failure& root);

}  // namespace ddp::launcher
