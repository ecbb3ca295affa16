#pragma once

#include <vector>

#include "apps/ddplaunch/join_listener.h"
#include "apps/ddplaunch/options/options.h"
#include "apps/ddplaunch/start_up.h"
#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp {

/// Runs a validated job in the foreground: shells, master, exit code (docs/exit_codes.md).
/// `token` is DDPLAUNCH_TOKEN's, for daemons. `door`: where its nodes join, in per-node mode; else null.
int launch(const launcher::JobSpec& spec, const GivenToken& token, JoinListener* join_listener = nullptr);

/// Per-node mode: this process is node 0 and the job's master, or joins it as one of its nodes. Returns the
/// exit code, on all nodes that of the job. Before any thread.
int run_per_node(const launcher::JobSpec& spec, GivenToken given);

/// `ddplaunch check` and `ddplaunch hosts`: asks all hosts, prints what they told to stdout, and returns the
/// exit code (docs/check.md). Starts no worker and leaves no file.
int check(const RunJob& job, const GivenToken& token);

/// `ddplaunch check --deep` and `--collectives`: runs the bundled trainer on the hosts and adds what it
/// found. Not where the hosts could not run a job anyhow, which is said on stderr. A signal of the user's
/// stands in `result`.
void check_deep(const RunJob& job, const GivenToken& token, launcher::CheckResult& result,
                std::vector<launcher::CheckDiagnostic>& diagnostics);

}  // namespace ddp
