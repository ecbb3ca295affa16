#pragma once

#include <string>

#include "launcher/report/job_end.h"

namespace ddp::launcher {

/// What a signal usually means, and where to look: "it used memory that is not its own (…)". Empty: nothing
/// to add to its name.
std::string signal_meaning(const Failure& failure);

/// What an Xid line of the NVIDIA driver ("NVRM: Xid (PCI:0000:65:00): 79, …") means for the user; empty: an
/// error of which we know nothing.
std::string xid_meaning(const std::string& line);

/// What to do about a root cause, where its stderr shows a known pattern; empty: nothing known.
std::string hint_for(const Failure& root);

}  // namespace ddp::launcher
