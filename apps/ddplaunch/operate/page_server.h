#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/ddplaunch/operate/operate_options.h"
#include "base/asio.h"
#include "base/crypto.h"
#include "base/result.h"
#include "launcher/control/job_registry.h"

namespace ddp {

/// The state of a job for its page.
struct PageState {
  std::string json;  ///< the keys of its registration, its status while it runs, its report after the end
  bool is_final = false;  ///< it has ended, so that nothing in it changes
};
/// Asks the job's ddplaunch, and waits one second at most.
PageState page_state(const launcher::JobEntry& job);

/// Returns all that a report about a job shows, as JSON: state, events, and the last output of ranks that
/// failed and of rank 0.
std::string report_data(const launcher::JobEntry& job);

/// Returns the page as one file without references to others. `data`, JSON: what a report shows, or
/// {"page": "job"} or {"page": "jobs"} for a page that fetches it from the server that it came from.
/// `nonce`: of the server's Content-Security-Policy.
std::string page_html(std::string_view data, std::string_view nonce);

/// Returns whether a browser may have been sent to this server under the name in a Host header. A page of
/// another site whose name resolves to this address (DNS rebinding) must not reach it. Addresses and
/// localhost are safe, and beyond loopback the name of this host, `own_name`, with or without a domain.
bool is_own_host(std::string_view host, bool is_loopback, std::string_view own_name);

/// Where a server finds the jobs whose pages it serves.
struct PageJobs {
  std::optional<launcher::JobEntry> only = {};                                   ///< unset: all of the user
  std::function<std::vector<launcher::JobEntry>()> read = {};                    ///< of all
  std::function<std::string(const std::vector<launcher::JobEntry>&)> list = {};  ///< as `ps --all --json`
};

/// Serves the pages about jobs over HTTP/1.1 (docs/users/dashboard.md). Every request must have the token,
/// as ?token=… or as a bearer token. It reads the files of a job and asks its ddplaunch once a second while
/// a page is open, so that viewers cost the job nothing else. One thread.
class PageServer {
 public:
  static constexpr std::size_t kMostClients = 64;  ///< that ask; further ones wait
  static constexpr std::size_t kMostPages = 64;    ///< that are open; further ones get 503

  /// Listens there (launcher::listen_http).
  static Result<std::unique_ptr<PageServer>> listen(const std::string& address, std::uint16_t port,
                                                    PageJobs jobs, Secret token);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  std::uint16_t port() const;
  /// Serves until SIGINT or SIGTERM, or with `idle` until no client has come for this time.
  void run(std::optional<std::chrono::seconds> idle = {});

 private:
  struct Feed;
  struct State;
  explicit PageServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// `ddplaunch report`: writes the page about a job, whose files exist, to --output. kUsage: no --output.
Result<> write_report(const OperateOptions& options, const launcher::JobEntry& job);

/// `ddplaunch dashboard`: prints the address of the page and serves it until the process ends; with --detach
/// in a process of its own. Errors of the address and of --token-file.
Result<> serve_page(const OperateOptions& options, PageJobs jobs);

}  // namespace ddp
