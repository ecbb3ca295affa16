// ddplaunch-listen: runs `ddplaunchd --listen` and `--new-token`. ddplaunchd executes this program,
// because the agent itself is static and has no TLS.
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "apps/ddplaunchd/daemon_options.h"
#include "base/child_process.h"
#include "base/files.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/links/daemon.h"
#include "rendezvous/link/link_token.h"

namespace {

int fail(const ddp::Error& error) {
  std::fprintf(stderr, "ddplaunchd: %s\n", error.text.c_str());
  return error.code == ddp::ErrorCode::kUsage ? 2 : 110;
}

int make_token(const std::string& path) {
  const auto made = ddp::rendezvous::write_new_token(path);
  if (!made) return fail(made.error());
  std::printf("%s\n", made->c_str());
  return std::fflush(stdout) == 0 ? 0 : 110;
}

std::string endpoint_text(const std::string& address, std::uint16_t port) {
  return address.empty() ? "port " + std::to_string(port) : ddp::format_endpoint(address, port);
}

ddp::Result<ddp::rendezvous::TcpListener> open_port(const ddp::DaemonOptions& options) {
  using namespace ddp::rendezvous;
  auto listener = options.address.empty() ? listen_tcp(ListenScope::kAllInterfaces, options.port)
                                          : listen_tcp_at(options.address, options.port);
  if (listener || listener.error().sys != EADDRINUSE) return listener;
  const std::string port = std::to_string(options.port);
  return ddp::Error{ddp::ErrorCode::kSystem,
                    endpoint_text(options.address, options.port) +
                        " is in use, perhaps by another ddplaunchd --listen (check systemctl --user status "
                        "ddplaunchd; ss -ltnp 'sport = :" +
                        port +
                        "' shows who). Each user's daemon needs a port of its "
                        "own: --listen PORT here, --daemon-port PORT or port= in the hostfile for ddplaunch",
                    EADDRINUSE};
}

}  // namespace

int main(int argc, char** argv) {
  ddp::fill_standard_descriptors();
  const auto given = ddp::rendezvous::take_token_from_environment();
  ::signal(SIGPIPE, SIG_IGN);
  const auto options = ddp::read_daemon_options({argv + 1, argv + argc});
  if (!options) return fail(options.error());
  if (options->command == ddp::DaemonCommand::kNewToken) return make_token(options->new_token_path);
  if (options->command != ddp::DaemonCommand::kListen)
    return fail(
        {ddp::ErrorCode::kUsage, "ddplaunch-listen serves only --listen and --new-token; run ddplaunchd"});
  ddp::raise_nofile();
  auto token = ddp::rendezvous::find_daemon_token(options->token_file, given);
  if (!token) return fail(token.error());
  const auto directory = ddp::own_directory();
  if (!directory) return fail(directory.error());
  // An installation has this program in libexec/ddplaunch, and the agent in bin.
  const bool installed = directory->ends_with("/libexec/ddplaunch");
  const std::string agent = *directory + (installed ? "/../../bin/ddplaunchd" : "/ddplaunchd");
  if (const std::string why = ddp::distrust_companion(agent); !why.empty())
    return fail({ddp::ErrorCode::kExec, agent + " is not executed: " + why, EPERM});
  auto listener = open_port(*options);
  if (!listener) return fail(listener.error());
  ddp::rendezvous::SecureAcceptorOptions port;
  port.where = endpoint_text(options->address, listener->port);
  port.listener = std::move(*listener);
  port.token = std::move(*token);
  return ddp::launcher::run_daemon_listener(std::move(port), agent);
}
