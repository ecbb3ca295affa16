#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/report/job_end.h"

namespace ddp::launcher {

/// The kind of a failure, best cause first. Only this module reads text that a worker printed, to choose
/// between failures and for hint_for.
enum class Blame : std::uint8_t {
  kOwn,         ///< it failed by itself: crash, OOM killer, exception, exit code, no program
  kTerminated,  ///< another program terminated it
  kEcho,        ///< it noticed a lost peer: watchdog, "Connection reset by peer", SIGPIPE
  kNode,        ///< a whole node
};
Blame blame_of(const Failure& failure);

/// Returns the failure that the others follow from; unset when we stopped all workers or there is no failure.
///
/// It is the earliest by corrected time. If the clocks cannot order several failures, `blame_of` decides, and
/// then the time. This is so when their margins overlap, or when they differ by less than 0.5 ms, by which an
/// agent may see an end late. Ends on one node are in the order in which its agent saw them.
///
/// A failure that only noticed a dead peer is no cause, and often ends before the peer: a process closes its
/// sockets before its core is written and its GPUs are freed. Therefore a failure that came by itself up to 2
/// s later is preferred, even if our stop was already on its way. If there is none, a rank that others
/// terminated, or the loss of a node, in that time is preferred.
std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures);

/// Returns what a signal usually means, and where to look: "it used memory that is not its own (…)". Empty:
/// the name says enough.
std::string signal_meaning(const Failure& failure);

/// Returns the number of an Xid line of the NVIDIA driver; 0 for any other line.
int xid_number(std::string_view line);
/// Returns the meaning of an Xid line of the NVIDIA driver ("NVRM: Xid (PCI:0000:65:00): 79, …") for the
/// user; empty: unknown error.
std::string xid_meaning(const std::string& line);

/// Returns advice on a root cause whose stderr shows a known pattern; empty: none.
std::string hint_for(const Failure& root);

}  // namespace ddp::launcher
