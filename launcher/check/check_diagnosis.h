#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// One thing that is wrong, on one host or alike on several.
struct CheckDiagnostic {
  enum class Severity : std::uint8_t { kWarning, kError };
  Severity level = Severity::kError;
  std::string item;                ///< of kCheckItems, for programs
  std::vector<std::size_t> nodes;  ///< by index, ascending; empty: of the job as a whole
  std::string text;                ///< what
  std::string advice;              ///< what to do
  bool operator==(const CheckDiagnostic&) const = default;
};

/// The verdict over what was found (sans-IO): an error is what would break the job or keep it from starting,
/// a warning what may. Errors first, in the order of the items and then of the nodes; what several hosts have
/// alike is one finding.
std::vector<CheckDiagnostic> diagnose_nodes(const JobSpec& spec, const CheckResult& result);

/// The exit code (docs/check.md): 0; 128+n when the user's signal n ended it; the code a job would end with
/// when a host could not even be asked; else 115.
int check_exit_code(const CheckResult& result, const std::vector<CheckDiagnostic>& diagnostics);

/// "12.1 GiB", "512 KiB": of bytes, for people.
std::string bytes_text(std::uint64_t bytes);

}  // namespace ddp::launcher
