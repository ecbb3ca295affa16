#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/job/job_spec.h"
#include "remote/bootstrap/bootstrap.h"
#include "remote/shells/remote_shell.h"
#include "remote/start/agent_bundle.h"
#include "rendezvous/secure/link_token.h"

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
void take_signals();

/// Raises the limit of open files for the nodes of this job. Error kSystem: the hard limit is too low. Call
/// it before any thread or child starts.
Result<> make_room_for_nodes(const launcher::JobSpec& spec);

/// Receives a shell's lines for the user. It runs on the loop's thread, so it must not wait for their reader.
/// May be empty.
using UserNotifier = std::function<void(const std::string&)>;

/// Makes the shell that reaches the job's hosts. kUsage with --launcher daemon: there is no valid token.
Result<std::unique_ptr<remote::RemoteShell>> make_remote_shell(asio::io_context& loop,
                                                               const launcher::JobSpec& spec,
                                                               const GivenToken& given, UserNotifier notify);

/// The agent that the nodes run.
struct AgentChoice {
  std::string path;                             ///< path on the nodes
  remote::AgentHello expected;                  ///< required content of its hello
  std::shared_ptr<remote::AgentBundle> bundle;  ///< source for nodes that lack the agent; unset: they get
                                                ///< none
};
Result<AgentChoice> choose_agent(const launcher::JobSpec& spec);

}  // namespace ddp
