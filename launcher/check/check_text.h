#pragma once

#include <string>
#include <vector>

#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_result.h"
#include "launcher/job/job_spec.h"

namespace ddp::launcher {

/// The output of `ddplaunch check` for people: a line for each host, then a line for each diagnostic.
/// `colours`: for a terminal.
std::string check_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics, bool colours);
/// The same for programs: one JSON document, described in docs/users/check.md.
std::string check_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);

/// The output of `ddplaunch hosts`: what a job would consist of. Only variables that ddplaunch sets have
/// values.
std::string hosts_text(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);
std::string hosts_json(const JobSpec& spec, const CheckResult& result,
                       const std::vector<CheckDiagnostic>& diagnostics);

/// The output of `ddplaunch clean`: for each host how many processes were found, and what is left.
std::string clean_text(const JobSpec& spec, const CheckResult& result);
std::string clean_json(const JobSpec& spec, const CheckResult& result);

/// The last line on stderr: "exit 115: a job would fail, 2 errors found". Empty for exit code 0.
std::string check_last_line(int exit_code, const CheckResult& result, const JobSpec& spec,
                            const std::vector<CheckDiagnostic>& diagnostics);

/// The variables that differ between hosts: NAME, or NAME=VALUE if ddplaunch chooses the value.
std::vector<std::string> node_variables(const JobSpec& spec, const CheckResult& result, std::size_t node);
/// The interface that is chosen for a node, or "".
std::string chosen_interface(const CheckResult& result, std::size_t node);
/// The node's address on that interface, else the one at which it was reached.
std::string chosen_address(const CheckResult& result, std::size_t node);

}  // namespace ddp::launcher
