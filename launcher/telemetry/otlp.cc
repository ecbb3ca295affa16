#include "launcher/telemetry/otlp.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <variant>

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "base/program.h"
#include "base/text.h"
#include "launcher/report/report_json.h"

// Names of https://github.com/open-telemetry/opentelemetry-proto, as its JSON has them: lowerCamelCase,
// 64-bit numbers as text, ids as hexadecimal digits, enumerations as numbers.

namespace ddp::launcher {
namespace {

constexpr int kCumulative = 2;  ///< AGGREGATION_TEMPORALITY_CUMULATIVE
constexpr int kInternal = 1;    ///< SPAN_KIND_INTERNAL
constexpr int kError = 2;       ///< STATUS_CODE_ERROR
constexpr std::size_t kMostEvents = 64;

std::string nanoseconds(std::chrono::system_clock::time_point time) {
  return std::to_string(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

OrderedJson text_attribute(std::string_view key, std::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

OrderedJson number_attribute(std::string_view key, std::int64_t value) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(value)}}}};
}

/// `kind`: "resourceMetrics" and "scopeMetrics" with "metrics", or the same of spans.
std::string request(const OtlpResource& resource, const char* of_resource, const char* of_scope,
                    const char* list, OrderedJson items) {
  OrderedJson attributes = OrderedJson::array();
  for (const auto& [key, value] : resource)
    attributes.push_back(text_attribute(key, value));
  OrderedJson scope{{"scope", {{"name", "ddplaunch"}, {"version", version()}}}, {list, std::move(items)}};
  OrderedJson of{{"resource", {{"attributes", std::move(attributes)}}}};
  of[of_scope].push_back(std::move(scope));
  OrderedJson all;
  all[of_resource].push_back(std::move(of));
  return all.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

/// A point of a series at one time.
class Points {
 public:
  Points(const MetricLabels& common, std::chrono::system_clock::time_point started,
         std::chrono::system_clock::time_point now)
      : common_(common), started_(nanoseconds(started)), now_(nanoseconds(now)) {}

  OrderedJson point(const MetricLabels& labels, bool counts) const {
    OrderedJson attributes = OrderedJson::array();
    for (const MetricLabels* some : {&common_, &labels})
      for (const auto& [name, value] : *some)
        attributes.push_back(text_attribute(name, value));
    OrderedJson json{{"attributes", std::move(attributes)}};
    if (counts) json["startTimeUnixNano"] = started_;
    json["timeUnixNano"] = now_;
    return json;
  }

  OrderedJson numbers(const MetricFamily& family, bool counts) const {
    OrderedJson points = OrderedJson::array();
    for (const MetricFamily::Sample& sample : family.samples) {
      points.push_back(point(sample.labels, counts));
      if (const auto* const real = std::get_if<double>(&sample.value))
        points.back()["asDouble"] = *real;
      else
        points.back()["asInt"] = std::to_string(std::get<std::uint64_t>(sample.value));
    }
    return points;
  }

  /// Prometheus' buckets are cumulative, OTLP's are not.
  OrderedJson histogram(const MetricFamily& family) const {
    OrderedJson json = point({}, true);
    json["bucketCounts"] = OrderedJson::array();
    json["explicitBounds"] = OrderedJson::array();
    std::uint64_t before = 0;
    for (const MetricFamily::Sample& sample : family.samples) {
      const std::string_view part = sample.suffix;
      if (part == "_sum") json["sum"] = std::get<double>(sample.value);
      if (part == "_count") json["count"] = std::to_string(std::get<std::uint64_t>(sample.value));
      if (part != "_bucket") continue;
      const auto count = std::get<std::uint64_t>(sample.value);
      json["bucketCounts"].push_back(std::to_string(count - std::exchange(before, count)));
      const std::string& bound = sample.labels.front().second;
      if (bound != "+Inf") json["explicitBounds"].push_back(std::stod(bound));
    }
    return json;
  }

 private:
  const MetricLabels& common_;
  std::string started_, now_;
};

}  // namespace

std::string otlp_metrics(const MetricsTable& table, const OtlpResource& resource,
                         std::chrono::system_clock::time_point started,
                         std::chrono::system_clock::time_point now) {
  const Points points(table.common, started, now);
  OrderedJson metrics = OrderedJson::array();
  for (const MetricFamily& family : table.families) {
    const std::string_view type = family.type;
    OrderedJson metric{{"name", family.name}, {"description", family.help}};
    if (type == "histogram") {
      metric["histogram"]["dataPoints"].push_back(points.histogram(family));
      metric["histogram"]["aggregationTemporality"] = kCumulative;
    } else if (type == "counter") {
      metric["sum"] = {{"dataPoints", points.numbers(family, true)},
                       {"aggregationTemporality", kCumulative},
                       {"isMonotonic", true}};
    } else {
      metric["gauge"] = {{"dataPoints", points.numbers(family, false)}};
    }
    metrics.push_back(std::move(metric));
  }
  return request(resource, "resourceMetrics", "scopeMetrics", "metrics", std::move(metrics));
}

std::string AttemptSpans::on_event(const JournalEvent& event, Time now) {
  using Kind = JournalEvent::Kind;
  const bool job_over = event.kind == Kind::kJobEnded;
  if (event.kind == Kind::kAttemptStarted) {
    attempt_ = Attempt{event.attempt.value_or(0), 0, event.nodes.size(), now, {}, {}};
    for (const JournalEvent::AttemptNode& node : event.nodes)
      attempt_->ranks += node.ranks;
  }
  if (!attempt_ && !job_over) return {};
  if (attempt_ && attempt_->events.size() < kMostEvents) {
    const auto note = [&](const char* name) {
      attempt_->events.push_back({name, event.node, event.reason, now});
    };
    if (event.kind == Kind::kAttemptRunning) note("running");
    if (event.kind == Kind::kNodeLost) note("node lost");
    if (event.kind == Kind::kHangFound) note("hang found");
    if (event.kind == Kind::kHangOver) note("hang over");
  }
  if (event.kind == Kind::kAttemptStopping && event.failure && attempt_->failure.empty())
    attempt_->failure = event.reason.empty() ? "failed" : event.reason;
  if (event.kind != Kind::kAttemptEnded && !job_over) return {};

  OrderedJson spans = OrderedJson::array();
  const std::string trace = ids_.substr(0, 32), job = ids_.substr(32);
  const auto add = [&](const std::string& id, const std::string& name, Time started, OrderedJson attributes,
                       const std::string& failure) {
    spans.push_back({{"traceId", trace},
                     {"spanId", id},
                     {"name", name},
                     {"kind", kInternal},
                     {"startTimeUnixNano", nanoseconds(started)},
                     {"endTimeUnixNano", nanoseconds(now)},
                     {"attributes", std::move(attributes)},
                     {"status", failure.empty() ? OrderedJson::object()
                                                : OrderedJson{{"code", kError}, {"message", failure}}}});
  };
  if (attempt_) {
    // No two attempts of a job have one number, so the ids differ.
    const std::uint64_t id = std::stoull(job, nullptr, 16) + attempt_->number + 1;
    add(format_text("%016llx", static_cast<unsigned long long>(id)),
        "attempt " + std::to_string(attempt_->number), attempt_->started,
        OrderedJson::array({number_attribute("ddplaunch.attempt", attempt_->number),
                            number_attribute("ddplaunch.ranks", attempt_->ranks),
                            number_attribute("ddplaunch.nodes", static_cast<std::int64_t>(attempt_->nodes))}),
        attempt_->failure);
    spans.back()["parentSpanId"] = job;
    for (const SpanEvent& each : attempt_->events) {
      OrderedJson attributes = OrderedJson::array();
      if (!each.node.empty()) attributes.push_back(text_attribute("node", each.node));
      if (!each.reason.empty()) attributes.push_back(text_attribute("reason", each.reason));
      spans.back()["events"].push_back({{"timeUnixNano", nanoseconds(each.time)},
                                        {"name", each.name},
                                        {"attributes", std::move(attributes)}});
    }
    attempt_.reset();
  }
  if (job_over)
    add(job, "job " + job_, started_,
        OrderedJson::array({number_attribute("ddplaunch.exit_code", event.exit_code.value_or(0))}),
        event.exit_code == 0   ? ""
        : event.reason.empty() ? "failed"
                               : event.reason);
  return request(resource_, "resourceSpans", "scopeSpans", "spans", std::move(spans));
}

namespace {

using asio::ip::tcp;
using Clock = std::chrono::steady_clock;
namespace http = boost::beast::http;

/// OTLP's own default.
constexpr std::chrono::seconds kSendTime{10};
/// Of the thread, once its requests are cancelled.
constexpr std::chrono::milliseconds kEndTime{200};
constexpr std::uint16_t kDefaultPort = 4318;
constexpr std::size_t kAnswerBytes = 64u << 10;

std::string_view trim(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(' '), text.size());
  return text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
}

/// Decodes "%2C"; other text stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [](char c) {
      return std::string_view("0123456789abcdef").find(static_cast<char>(c | 0x20));
    };
    const bool escaped =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) < 16 && digit(text[i + 2]) < 16;
    plain += escaped ? static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2])) : text[i];
    i += escaped ? 2 : 0;
  }
  return plain;
}

/// Reads "key=value,key2=value2", as W3C Baggage has it.
std::vector<std::pair<std::string, std::string>> read_pairs(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string_view pair : split(text, ',')) {
    const std::size_t equals = pair.find('=');
    const std::string key = percent_decoded(trim(pair.substr(0, equals)));
    if (equals != std::string_view::npos && !key.empty())
      pairs.emplace_back(key, percent_decoded(trim(pair.substr(equals + 1))));
  }
  return pairs;
}

struct CollectorRequest {
  tcp::socket socket;
  http::request<http::string_body> request;
  std::string trouble = "no answer";  ///< empty: it was taken

  static Awaitable<> run(CollectorRequest* self, tcp::endpoint place) {
    const auto [unreachable] = co_await self->socket.async_connect(place, kUseTuple);
    if (unreachable) {
      self->trouble = unreachable.message();
      co_return;
    }
    const auto [unsent, sent] = co_await http::async_write(self->socket, self->request, kUseTuple);
    boost::beast::flat_buffer buffer(kAnswerBytes);
    http::response_parser<http::string_body> parser;
    parser.body_limit(kAnswerBytes);
    const auto [unread, size] = co_await http::async_read(self->socket, buffer, parser, kUseTuple);
    const error_code failed = unsent ? unsent : unread;
    if (failed)
      self->trouble = failed.message();
    else
      self->trouble =
          parser.get().result_int() < 300 ? "" : "HTTP " + std::to_string(parser.get().result_int());
  }
};

}  // namespace

Result<OtlpTarget> OtlpTarget::read(const std::function<std::string(const char* name)>& variable) {
  constexpr std::string_view kScheme = "http://";
  OtlpTarget target;
  target.text = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
  if (target.text.empty() || lower_case(variable("OTEL_SDK_DISABLED")) == "true") return target;
  const auto refused = [&target](const std::string& why) {
    return Error{ErrorCode::kUsage, "OTEL_EXPORTER_OTLP_ENDPOINT " + one_line(target.text) + ": " + why};
  };
  if (variable("OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc")
    return refused("only HTTP is known, and the protocol is grpc");
  std::string_view rest = target.text;
  if (!rest.starts_with(kScheme)) return refused("give http://HOST:PORT; TLS is not known");
  rest.remove_prefix(kScheme.size());
  while (rest.ends_with('/'))
    rest.remove_suffix(1);
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  target.path = rest.substr(slash);
  const auto place = split_endpoint(rest.substr(0, slash));
  target.port = kDefaultPort;
  if (place && place->port) {
    const auto port = parse_number<std::uint16_t>(*place->port);
    if (!port || *port == 0) return refused("its port is not 1 to 65535");
    target.port = *port;
  }
  const auto is_odd = [](unsigned char c) { return c <= ' ' || c == 127; };
  if (!place || place->host.empty() || std::ranges::any_of(rest, is_odd))
    return refused("give http://HOST:PORT");
  if (!rest.starts_with('[') && place->host.find(':') != std::string::npos)
    return refused("write an IPv6 address in brackets: http://[fd00::5]:4318");
  target.host = place->host;
  target.headers = read_pairs(variable("OTEL_EXPORTER_OTLP_HEADERS"));
  for (const auto& [name, value] : target.headers)
    if (std::ranges::any_of(name, is_odd) ||
        std::ranges::any_of(value, [](unsigned char c) { return c < ' ' || c == 127; }))
      return refused("OTEL_EXPORTER_OTLP_HEADERS has control characters");
  const std::string service = variable("OTEL_SERVICE_NAME");
  for (auto& [key, value] : read_pairs(variable("OTEL_RESOURCE_ATTRIBUTES")))
    if (key != "service.name" || service.empty()) target.resource.emplace_back(key, value);
  const bool named =
      std::ranges::any_of(target.resource, [](const auto& pair) { return pair.first == "service.name"; });
  if (!named) target.resource.emplace_back("service.name", service.empty() ? "ddplaunch" : service);
  return target;
}

struct OtlpSender::State {
  State() : loop(1) {}

  OtlpTarget target;
  FindAddresses find;
  std::function<void(const std::string&)> say;
  bool said = false;
  asio::io_context loop;
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> metrics;  ///< the latest that was not sent
  std::deque<std::string> spans;
  bool kicked = false;  ///< there is something new, so that the next try is due
  bool busy = false;
  bool ending = false;
  bool ended = false;  ///< set by the thread at its end
  std::thread thread;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return ending || kicked; });
      if (ending) break;
      kicked = false;
      busy = true;
      bool taken = true;
      if (metrics) {
        const std::string json = std::move(*metrics);
        metrics.reset();
        taken = send_unlocked(lock, "/v1/metrics", json);
      }
      // Metrics are replaced by the next ones; spans are kept for the next try.
      while (taken && !spans.empty() && !ending) {
        std::string json = std::move(spans.front());
        spans.pop_front();
        taken = send_unlocked(lock, "/v1/traces", json);
        if (!taken) spans.push_front(std::move(json));
      }
      busy = false;
      changed.notify_all();
    }
    ended = true;
    changed.notify_all();
  }

  bool send_unlocked(std::unique_lock<std::mutex>& lock, const char* path, const std::string& json) {
    lock.unlock();
    const std::string trouble = send(path, json);
    lock.lock();
    if (!trouble.empty() && !ending && !std::exchange(said, true))
      say("warning: OTEL_EXPORTER_OTLP_ENDPOINT " + one_line(target.text) + ": " + one_line(trouble) +
          "; metrics and spans that it does not take are lost");
    return trouble.empty();
  }

  /// Returns why the collector did not take it; empty: it did.
  std::string send(const char* path, const std::string& json) {
    const Clock::time_point deadline = Clock::now() + kSendTime;
    error_code no_number;
    std::vector<asio::ip::address> addresses{asio::ip::make_address(target.host, no_number)};
    if (no_number) {
      const auto found = find(target.host, deadline);
      if (!found) return found.error().text;
      addresses = *found;
    }
    std::string trouble;
    for (const asio::ip::address& address : addresses) {
      trouble = send_to({address, target.port}, path, json, deadline);
      if (trouble.empty()) break;
    }
    return trouble;
  }

  std::string send_to(const tcp::endpoint& place, const char* path, const std::string& json,
                      Clock::time_point deadline) {
    CollectorRequest sent{tcp::socket(loop), {http::verb::post, target.path + path, 11, json}};
    sent.request.set(http::field::host, target.host + ':' + std::to_string(target.port));
    sent.request.set(http::field::content_type, "application/json");
    for (const auto& [name, value] : target.headers)
      sent.request.set(name, value);
    sent.request.keep_alive(false);
    sent.request.prepare_payload();
    loop.restart();
    spawn(loop.get_executor(), CollectorRequest::run(&sent, place));
    const auto is_ending = [this] {
      const std::lock_guard lock(mutex);
      return ending;
    };
    if (!is_ending()) loop.run_until(deadline);  // the destructor stops it
    error_code ignored;
    sent.socket.close(ignored);
    loop.restart();
    loop.run();  // the task must end before its objects
    return sent.trouble;
  }
};

OtlpSender::OtlpSender(std::shared_ptr<State> state) : state_(std::move(state)) {}

OtlpSender::OtlpSender(OtlpSender&&) noexcept = default;

Result<OtlpSender> OtlpSender::start(OtlpTarget target, FindAddresses find,
                                     std::function<void(const std::string&)> say) {
  auto state = std::make_shared<State>();
  state->target = std::move(target);
  state->find = std::move(find);
  state->say = std::move(say);
  state->thread = DDP_TRY(start_thread([state] { state->run(); }));
  return OtlpSender(std::move(state));
}

OtlpSender::~OtlpSender() {
  if (!state_ || !state_->thread.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  state_->loop.stop();
  const bool ended = state_->changed.wait_for(lock, kEndTime, [this] { return state_->ended; });
  lock.unlock();
  // Only a name service holds it longer, and the process ends soon.
  ended ? state_->thread.join() : state_->thread.detach();
}

const OtlpResource& OtlpSender::resource() const {
  return state_->target.resource;
}

void OtlpSender::send_metrics(std::string json) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->metrics = std::move(json);
    state_->kicked = true;
  }
  state_->changed.notify_all();
}

void OtlpSender::send_spans(std::string json) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->spans.push_back(std::move(json));
    if (state_->spans.size() > kMostSpans) state_->spans.pop_front();
    state_->kicked = true;
  }
  state_->changed.notify_all();
}

void OtlpSender::finish(std::chrono::milliseconds limit) {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait_for(lock, limit, [this] { return !state_->kicked && !state_->busy; });
}

}  // namespace ddp::launcher
