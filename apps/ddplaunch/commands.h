#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/ddplaunch/options/options.h"
#include "base/asio.h"
#include "base/result.h"
#include "launcher/check/check_diagnosis.h"
#include "launcher/job/job_spec.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/start/fan_out.h"
#include "remote/transports/transport.h"
#include "rendezvous/link/link_token.h"
#include "rendezvous/link/tcp_listener.h"

namespace ddp {

/// The value of DDPLAUNCH_TOKEN before it was erased; empty if it was not set. An error counts only if the
/// token is needed.
using GivenToken = Result<rendezvous::LinkToken>;

/// Prints the last line of a program that ends with this error, and returns its exit code.
int report_exit(const Error& error);

/// Returns the result of `body`. Threads and memory are needed everywhere, so their refusal is an exception;
/// it is reported here and gives exit code 116. So does refused memory that no caller can catch.
int report_refusals(const std::function<int()>& body);

/// Overrides inherited settings: children are waited for, signals arrive, and a full disk or pipe is an error
/// that does not kill the process.
void reset_signals();

/// Raises the limit of open files for the nodes of this job. Error kSystem: the hard limit is too low. Call
/// it before any thread or child starts.
Result<> make_room_for_nodes(const launcher::JobSpec& spec);

/// Receives a transport's lines for the user. It runs on the loop's thread, so it must not wait for their
/// reader. May be empty.
using UserNotifier = std::function<void(const std::string&)>;

/// Makes the transport that reaches the job's hosts. kUsage with --launcher daemon: there is no valid token.
Result<std::unique_ptr<remote::Transport>> make_transport(asio::io_context& loop,
                                                          const launcher::JobSpec& spec,
                                                          const GivenToken& given, UserNotifier notify);

/// Returns which agent the nodes run, and which they get if they lack it.
Result<remote::FanOutOptions> choose_agent(const launcher::JobSpec& spec);

/// The control port of per-node mode, and the token that nodes prove.
struct JoinListener {
  rendezvous::TcpListener listener;
  rendezvous::LinkToken token;
};

/// Makes the transport through which the master gets its nodes.
Result<std::unique_ptr<remote::Transport>> make_join_transport(asio::io_context& loop,
                                                               const launcher::JobSpec& spec,
                                                               JoinListener join_listener,
                                                               UserNotifier notify);

/// Returns what to do where another job has the id of this one: in per-node mode it may be the same job, and
/// this another node of it. Empty: the usual.
std::string claim_advice(const launcher::JobSpec& spec);

/// Runs a validated job in the foreground: transports, master, exit code (docs/users/exit_codes.md). `token`
/// is from DDPLAUNCH_TOKEN, for daemons. `join_listener` is where nodes join in per-node mode; else null.
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

/// `ddplaunch hosts --history` and `--forget`: prints or changes the host history, contacts no host, and
/// returns the exit code (docs/users/host_history.md).
int show_host_history(const RunJob& job);

/// `ddplaunch clean`: ends what is left of a job on its hosts, prints what was found there, and returns the
/// exit code (docs/users/operate.md).
int clean(const RunJob& job, const GivenToken& token);

}  // namespace ddp
