#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/asio.h"
#include "base/result.h"
#include "launcher/report/job_status.h"
#include "launcher/report/journal.h"

namespace ddp::launcher {

/// Attributes of the process that sends, such as service.name.
using OtlpResource = std::vector<std::pair<std::string, std::string>>;

/// Returns the metrics of metrics_of() as an ExportMetricsServiceRequest of OTLP 1.x in JSON. `started`: of
/// the job, from which counters count.
std::string otlp_metrics(const MetricsTable& table, const OtlpResource& resource,
                         std::chrono::system_clock::time_point started,
                         std::chrono::system_clock::time_point now);

/// Makes spans of the attempts of a job, and one of the job that contains them (sans-IO).
class AttemptSpans {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// `ids`: 48 random hexadecimal digits: of the trace, and of the job's span.
  AttemptSpans(OtlpResource resource, std::string ids, std::string job, Time started)
      : resource_(std::move(resource)), ids_(std::move(ids)), job_(std::move(job)), started_(started) {}

  /// Returns the spans that this event ends, as an ExportTraceServiceRequest in JSON; empty: none.
  std::string on_event(const JournalEvent& event, Time now);

 private:
  struct SpanEvent {
    std::string name, node, reason;
    Time time;
  };
  struct Attempt {
    std::uint32_t number = 0;
    int ranks = 0;
    std::size_t nodes = 0;
    Time started;
    std::string failure;  ///< why it was stopped; empty: not because of a failure
    std::vector<SpanEvent> events;
  };

  OtlpResource resource_;
  std::string ids_;
  std::string job_;
  Time started_;
  std::optional<Attempt> attempt_;  ///< that runs
};

/// Where metrics and spans are sent, from the environment (docs/users/metrics.md).
struct OtlpTarget {
  std::string host;
  std::uint16_t port = 0;
  std::string path;  ///< before /v1/metrics; empty or "/…"
  std::vector<std::pair<std::string, std::string>> headers;
  OtlpResource resource;
  std::string text;  ///< the endpoint as it was given

  /// Reads OTEL_EXPORTER_OTLP_ENDPOINT and its relatives by `variable`, which returns "" for an unset one. An
  /// empty host: nothing is to be sent. kUsage: the endpoint cannot be used.
  static Result<OtlpTarget> read(const std::function<std::string(const char* name)>& variable);
};

/// Sends metrics and spans by HTTP, on a thread of its own. A collector that is slow, dead or refuses costs
/// the job nothing: only the latest metrics and kMostSpans requests with spans wait for it.
class OtlpSender {
 public:
  static constexpr std::size_t kMostSpans = 64;
  static constexpr std::chrono::seconds kEvery{10};  ///< of metrics

  /// Blocks; called on the thread.
  using FindAddresses = std::function<Result<std::vector<asio::ip::address>>(
      const std::string& host, std::chrono::steady_clock::time_point deadline)>;
  /// `say` is called on the thread when the first request fails. Error: kSystem.
  static Result<OtlpSender> start(OtlpTarget target, FindAddresses find,
                                  std::function<void(const std::string&)> say);
  OtlpSender(OtlpSender&&) noexcept;
  OtlpSender& operator=(OtlpSender&&) = delete;
  /// Ends the thread; what waits is lost.
  ~OtlpSender();

  const OtlpResource& resource() const;
  /// Both take requests in JSON. They never wait. Thread-safe.
  void send_metrics(std::string json);
  void send_spans(std::string json);
  /// Waits until all is sent or has failed, at most for `limit`.
  void finish(std::chrono::milliseconds limit);

 private:
  struct State;
  explicit OtlpSender(std::shared_ptr<State> state);
  std::shared_ptr<State>
      state_;  ///< shared with the thread, which outlives this object in a name service that hangs
};

}  // namespace ddp::launcher
