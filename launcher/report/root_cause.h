#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/report/job_end.h"

namespace ddp::launcher {

/// One text by which a program says that it lost a peer, not that it failed by itself.
struct EchoText {
  std::string_view words;    ///< part of the text that identifies it; at least 4 bytes
  std::string_view source;   ///< program that writes it
  std::string_view example;  ///< the text as it was seen
};

/// All known texts, each once. A text that may also state an own failure does not belong here:
/// "DistNetworkError" (a port in use), "watchdog thread terminated" (any CUDA error), "EOFError: Ran out of
/// input" (a truncated file).
std::span<const EchoText> echo_texts();

/// True if `text`, whose lines end with '\n', has one of them.
bool is_echo(std::string_view text);

/// The kind of a failure, best cause first. Only this module reads text that a worker printed, to choose
/// between failures and for hint_for.
enum class Blame : std::uint8_t {
  kMachine,     ///< a lost node; a worker of a GPU whose hardware failed
  kCrash,       ///< a signal that no loss of a peer causes, the OOM killer
  kOwn,         ///< an exception of its own, an abort with a reason, no program, a hang
  kTerminated,  ///< another program terminated it
  kExitCode,    ///< an exit code without an exception
  kAbort,       ///< an abort without a reason
  kEcho,        ///< it noticed a lost peer: watchdog, "Connection reset by peer", SIGPIPE (echo_texts)
};
Blame blame_of(const Failure& failure);

/// Returns the exception that ended the worker, as `@record` has it, or as far as its stderr shows it: type,
/// first line of the message, frame. Unset: another end.
std::optional<WorkerException> exception_of(const Failure& failure);
/// Returns "ValueError: boom".
std::string exception_text(const WorkerException& exception);

/// True for a death by a crash or by the OOM killer, which is never the effect of a stop.
bool is_crash(const Failure& failure);

/// Returns the failure that the others follow from; unset when our stop caused all ends, or there is no
/// failure. The order of `failures` does not matter, except between equal ones.
///
///   1. The first failures are those of which none happened for certain before another one: their intervals
///      overlap (an agent may see an end 0.5 ms late), and ends on one node have an order. Ends that began
///      after our signal do not count. Of the first failures, the best kind is the cause, then the earliest.
///   2. If even the best only noticed a loss (kEcho), or aborted or exited without a reason, a worker that
///      died meanwhile explains it, however late its end was seen. Its end had begun when our signal came.
///   3. Failing that, a worker that failed by itself after our signal explains an echo or an abort without a
///      reason: it crashed, has an exception of its own, or ended by a code or an abort while our signal
///      ended others, or while all others only noticed a loss.
///
/// A lost node explains only what happened after its last byte, so only rule 1 chooses it.
std::optional<std::size_t> pick_root_cause(const std::vector<Failure>& failures);

/// Returns what a signal usually means, and where to look: "it used memory that is not its own (…)". Empty:
/// the name says enough.
std::string signal_meaning(const Failure& failure);

/// Returns the number of an Xid line of the NVIDIA driver; 0 for any other line.
int xid_number(std::string_view line);
/// Returns the numbers of the failure's Xid lines that say that a GPU or its firmware failed, not the
/// program.
std::vector<int> hardware_xids(const Failure& failure);
/// Returns the meaning of an Xid line of the NVIDIA driver ("NVRM: Xid (PCI:0000:65:00): 79, …") for the
/// user; empty: unknown error.
std::string xid_meaning(std::string_view line);

/// Returns advice on a root cause whose stderr shows a known pattern; empty: none.
std::string hint_for(const Failure& root);

}  // namespace ddp::launcher
