#include "launcher/control/metrics_server.h"

#include <pthread.h>

#include <csignal>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/asio.h"
#include "launcher/control/http_server.h"

namespace ddp::launcher {
namespace {

namespace http = boost::beast::http;

}  // namespace

struct MetricsServer::State {
  asio::io_context loop{1};
  std::uint16_t port = 0;
  std::mutex mutex;
  std::shared_ptr<const std::string> text;  ///< null: nothing was published
  std::optional<HttpServer> server;
  std::thread thread;

  static Awaitable<std::optional<HttpReply>> answer(State* self, const HttpRequest& request) {
    std::shared_ptr<const std::string> latest;
    {
      const std::lock_guard lock(self->mutex);
      latest = self->text;
    }
    const http::status status = request.target() != "/metrics"        ? http::status::not_found
                                : request.method() != http::verb::get ? http::status::method_not_allowed
                                : !latest                             ? http::status::service_unavailable
                                                                      : http::status::ok;
    co_return http_reply(request, status, status == http::status::ok ? *latest : "",
                         "text/plain; version=0.0.4");
  }
};

MetricsServer::MetricsServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

MetricsServer::MetricsServer(MetricsServer&&) noexcept = default;

Result<MetricsServer> MetricsServer::listen(const std::string& address, std::uint16_t port) {
  auto place = DDP_TRY(listen_http(address, port));
  auto state = std::make_unique<State>();
  state->port = place.listener.port;
  const HttpServer::Handler handler = [served = state.get()](HttpClient& client) {
    return State::answer(served, client.request);
  };
  state->server.emplace(
      DDP_TRY(HttpServer::start(state->loop.get_executor(), std::move(place.listener), {}, handler)));
  // The loop of the job handles all signals.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<> started;
  try {
    state->thread = std::thread([served = state.get()] { served->loop.run(); });
  } catch (const std::system_error& error) {
    started = system_error(error.code().value(), "start a thread");
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) return started.error();
  return MetricsServer(std::move(state));
}

MetricsServer::~MetricsServer() {
  if (!state_ || !state_->thread.joinable()) return;
  asio::post(state_->loop, [served = state_.get()] { served->server->close(); });
  state_->thread.join();
}

std::uint16_t MetricsServer::port() const {
  return state_->port;
}

void MetricsServer::publish(std::string text) {
  auto latest = std::make_shared<const std::string>(std::move(text));
  const std::lock_guard lock(state_->mutex);
  state_->text.swap(latest);
}

}  // namespace ddp::launcher
