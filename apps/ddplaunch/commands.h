#pragma once

#include <functional>
#include <vector>

#include "apps/ddplaunch/join_listener.h"
#include "apps/ddplaunch/options/options.h"
#include "apps/ddplaunch/start_up.h"
#include "launcher/check/check_diagnosis.h"
#include "launcher/check/check_run.h"
#include "launcher/job/job_spec.h"

namespace ddp {

/// Runs a validated job in the foreground: shells, master, exit code (docs/users/exit_codes.md). `token` is
/// from DDPLAUNCH_TOKEN, for daemons. `join_listener` is where nodes join in per-node mode; else null.
/// `registration`: where other processes find the job; null: they do not. `all_run` is called when all ranks
/// run for the first time.
int launch(const launcher::JobSpec& spec, const GivenToken& token, JoinListener* join_listener = nullptr,
           const launcher::JobRegistration* registration = nullptr, std::function<void()> all_run = {});

/// `--detach`: calls `run` in a process without the terminal, which outlives a logout. Returns 0 and prints
/// the job's id when all ranks run, or returns the exit code of a job that ended before. The new process
/// returns the result of `run`, and calls `all_run`. Call it before any thread starts.
int run_detached(const RunJob& job, const std::function<int(std::function<void()> all_run)>& run);

/// Per-node mode: this process is node 0 and the job's master, or joins node 0 as another node. Returns the
/// job's exit code on all nodes. Call it before any thread starts.
int run_per_node(const RunJob& job, GivenToken given);

/// `ddplaunch check` and `ddplaunch hosts`: queries all hosts, prints their answers to stdout, and returns
/// the exit code (docs/users/check.md). It starts no worker and leaves no file.
int check(const RunJob& job, const GivenToken& token);

/// `ddplaunch clean`: ends what is left of a job on its hosts, prints what was found there, and returns the
/// exit code (docs/users/operate.md).
int clean(const RunJob& job, const GivenToken& token);

/// `ddplaunch check --deep` and `--collectives`: runs the bundled trainer on the hosts and adds its
/// diagnostics. If the hosts could not run a job, it runs no test and says so on stderr. `result` records a
/// signal of the user.
void check_deep(const RunJob& job, const GivenToken& token, launcher::CheckResult& result,
                std::vector<launcher::CheckDiagnostic>& diagnostics);

}  // namespace ddp
