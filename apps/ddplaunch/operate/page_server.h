#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/asio.h"
#include "base/crypto.h"
#include "base/result.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// The most bytes of one stream that a page shows.
inline constexpr std::size_t kPageOutputBytes = 64u << 10;

/// Returns the state of a job as JSON: the keys of its registration, and while it runs its status. Asks its
/// ddplaunch, and waits one second at most.
std::string page_state(const launcher::JobEntry& job);

/// One stream of a rank in an attempt.
struct OutputStream {
  std::uint32_t attempt = 0;
  std::uint32_t rank = 0;
  bool is_stderr = false;
};
/// Returns the last bytes of a stream, from the begin of a line. kSystem: there is no such file.
Result<std::string> page_output(const launcher::JobEntry& job, const OutputStream& place);

/// Returns all that a report about a job shows, as JSON: state, events, and the last output of ranks that
/// failed and of rank 0.
std::string report_data(const launcher::JobEntry& job);

/// Returns the page about a job as one file without references to others. `data`: what a report shows, as
/// JSON; empty: the page fetches it from the server that it came from. `nonce`: of the server's
/// Content-Security-Policy.
std::string page_html(std::string_view data, std::string_view nonce);

/// Serves the page about one job over HTTP/1.1 (docs/users/dashboard.md). Every request must have the token,
/// as ?token=… or as a bearer token. It reads the files of the job and asks its ddplaunch once a second while
/// a page is open, so that viewers cost the job nothing else. One thread.
class PageServer {
 public:
  static constexpr std::size_t kMostClients = 64;  ///< further ones are closed

  /// Listens at `address` (numeric) and `port` (0: any).
  static Result<std::unique_ptr<PageServer>> listen(const std::string& address, std::uint16_t port,
                                                    launcher::JobEntry job, Secret token);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  std::uint16_t port() const;
  /// Serves until SIGINT or SIGTERM.
  void run();

 private:
  struct State;
  explicit PageServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// `ddplaunch report`: writes the page about a job, whose files exist, to --output. kUsage: no --output.
Result<> write_report(const OperateOptions& options, const launcher::JobEntry& job);

/// `ddplaunch dashboard`: prints the address of the page and serves it until the process ends. Errors of the
/// address and of --token-file.
Result<> serve_page(const OperateOptions& options, const launcher::JobEntry& job);

}  // namespace ddp
