#include "launcher/telemetry/otlp.h"

#include <string_view>
#include <variant>

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

}  // namespace ddp::launcher
