#pragma once

#include <string>
#include <vector>

#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// `ddplaunch check` for people: a line for each host, then a line for each finding. `colours`: for a
/// terminal.
std::string check_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics, bool colours);
/// The same for programs: one JSON document, as docs/check.md has it.
std::string check_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);

/// `ddplaunch hosts`: what a job would be made of. Of variables the names only, but for those that are ours.
std::string hosts_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);
std::string hosts_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);

/// The last line on stderr when the exit code is not 0: "exit 115: check found 2 errors". Empty for 0.
std::string check_last_line(int exit_code, const CheckResult& result, const JobSpec& spec,
                            const std::vector<CheckDiagnostic>& diagnostics);

/// The variables that differ from host to host, as NAME or NAME=VALUE where the value is our own choice.
std::vector<std::string> node_variables(const JobSpec& spec, const CheckResult& result, std::size_t node);
/// The interface that is chosen for a node, "" when none is.
std::string chosen_interface(const CheckResult& result, std::size_t node);
/// Its address on that interface, else the one that it was reached at.
std::string chosen_address(const CheckResult& result, std::size_t node);

}  // namespace ddp::launcher
