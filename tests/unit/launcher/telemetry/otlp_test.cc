#include "launcher/telemetry/otlp.h"

#include <map>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;
using Kind = JournalEvent::Kind;

constexpr std::chrono::system_clock::time_point kStart{1'700'000'000'000ms};

TEST_CASE("each family becomes a metric of its kind") {
  const MetricsTable table{
      {{"job", "a"}},
      {{"g", "gauge", "help", {{"", {{"node", "n"}}, 1.5}}},
       {"c_total", "counter", "help", {{"", {}, std::uint64_t{18'446'744'073'709'551'615u}}}},
       {"h",
        "histogram",
        "help",
        {{"_bucket", {{"le", "0.5"}}, std::uint64_t{2}},
         {"_bucket", {{"le", "1"}}, std::uint64_t{5}},
         {"_bucket", {{"le", "+Inf"}}, std::uint64_t{5}},
         {"_sum", {}, 2.5},
         {"_count", {}, std::uint64_t{5}}}}}};
  const Json json = Json::parse(otlp_metrics(table, {{"service.name", "s"}}, kStart, kStart + 1s));
  const Json& of = json["resourceMetrics"][0];
  CHECK(of["resource"]["attributes"][0] == Json{{"key", "service.name"}, {"value", {{"stringValue", "s"}}}});
  const Json& metrics = of["scopeMetrics"][0]["metrics"];
  const Json gauge = metrics[0]["gauge"]["dataPoints"][0];
  CHECK(gauge["asDouble"] == 1.5);
  CHECK(gauge["timeUnixNano"] == "1700000001000000000");
  CHECK(gauge["attributes"].dump() ==
        R"([{"key":"job","value":{"stringValue":"a"}},{"key":"node","value":{"stringValue":"n"}}])");
  const Json sum = metrics[1]["sum"];
  CHECK(sum["isMonotonic"] == true);
  CHECK(sum["aggregationTemporality"] == 2);
  CHECK(sum["dataPoints"][0]["asInt"] == "18446744073709551615");
  CHECK(sum["dataPoints"][0]["startTimeUnixNano"] == "1700000000000000000");
  const Json histogram = metrics[2]["histogram"]["dataPoints"][0];
  CHECK(histogram["bucketCounts"] == Json{"2", "3", "0"});
  CHECK(histogram["explicitBounds"] == Json{0.5, 1.0});
  CHECK(histogram["count"] == "5");
  CHECK(histogram["sum"] == 2.5);
}

TEST_CASE("spans of attempts are children of the span of the job") {
  const std::string trace(32, 'a');
  AttemptSpans spans({}, trace + "00000000000000ff", "run7", kStart);
  CHECK(spans.on_event({.kind = Kind::kJobStarted}, kStart).empty());
  CHECK(spans.on_event({.kind = Kind::kAttemptStarted, .attempt = 0, .nodes = {{"gpu01", 0, 8}}}, kStart + 1s)
            .empty());
  CHECK(
      spans.on_event({.kind = Kind::kNodeLost, .reason = "gone", .node = "gpu01", .attempt = 0}, kStart + 2s)
          .empty());
  CHECK(spans
            .on_event({.kind = Kind::kAttemptStopping, .reason = "lost", .attempt = 0, .failure = true},
                      kStart + 2s)
            .empty());
  const auto list = [](const std::string& text) {
    return Json::parse(text)["resourceSpans"][0]["scopeSpans"][0]["spans"];
  };
  const Json attempt = list(spans.on_event({.kind = Kind::kAttemptEnded, .attempt = 0}, kStart + 3s))[0];
  CHECK(attempt["traceId"] == trace);
  CHECK(attempt["spanId"] == "0000000000000100");
  CHECK(attempt["parentSpanId"] == "00000000000000ff");
  CHECK(attempt["startTimeUnixNano"] == "1700000001000000000");
  CHECK(attempt["endTimeUnixNano"] == "1700000003000000000");
  CHECK(attempt["status"] == Json{{"code", 2}, {"message", "lost"}});
  CHECK(attempt["events"][0]["name"] == "node lost");
  // The job ends within its second attempt, or without any.
  (void)spans.on_event({.kind = Kind::kAttemptStarted, .attempt = 1}, kStart + 4s);
  const Json last = list(spans.on_event({.kind = Kind::kJobEnded, .exit_code = 0}, kStart + 5s));
  REQUIRE(last.size() == 2);
  CHECK(last[0]["name"] == "attempt 1");
  CHECK(last[0]["status"] == Json::object());
  CHECK(last[1]["spanId"] == "00000000000000ff");
  CHECK(last[1]["name"] == "job run7");
  CHECK(list(spans.on_event({.kind = Kind::kJobEnded, .exit_code = 3}, kStart + 5s))[0]["status"]["code"] ==
        2);
}

Result<OtlpTarget> target_of(std::map<std::string, std::string> variables) {
  return OtlpTarget::read([&](const char* name) { return variables[name]; });
}

TEST_CASE("an endpoint has a host, a port and a path") {
  const auto place = [](const std::string& endpoint) -> std::string {
    const auto target = target_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", endpoint}});
    return target ? target->host + ' ' + std::to_string(target->port) + ' ' + target->path
                  : target.error().text;
  };
  CHECK(place("http://collector") == "collector 4318 ");
  CHECK(place("http://collector:80/") == "collector 80 ");
  CHECK(place("http://[::1]:4318/otlp/") == "::1 4318 /otlp");
  CHECK(place("http://[::1]") == "::1 4318 ");
  CHECK(place("") == " 0 ");
  CHECK(place("https://collector:4318") ==
        "OTEL_EXPORTER_OTLP_ENDPOINT https://collector:4318: give http://HOST:PORT; TLS is not known");
  CHECK(place("http://a:70000").ends_with(": its port is not 1 to 65535"));
  CHECK(place("http://fd00::5:4318").ends_with(": write an IPv6 address in brackets: http://[fd00::5]:4318"));
  CHECK(place("http://").ends_with(": give http://HOST:PORT"));
  CHECK(place("http://a b").ends_with(": give http://HOST:PORT"));
  CHECK(place("http://a/\r\nX: y").ends_with(": give http://HOST:PORT"));
}

TEST_CASE("headers and attributes are percent-decoded pairs") {
  const auto target = target_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"},
                                 {"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%2Cb, x = y ,broken"},
                                 {"OTEL_RESOURCE_ATTRIBUTES", "service.name=of_list,team=a%3Db"},
                                 {"OTEL_SERVICE_NAME", "mine"}});
  REQUIRE(target.has_value());
  CHECK(target->headers == std::vector<std::pair<std::string, std::string>>{{"api-key", "a,b"}, {"x", "y"}});
  CHECK(target->resource == OtlpResource{{"team", "a=b"}, {"service.name", "mine"}});
  CHECK(target_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}, {"OTEL_EXPORTER_OTLP_HEADERS", "a=%0d%0ax"}})
            .has_error());
  CHECK(target_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}, {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}})
            .has_error());
  CHECK(
      target_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}, {"OTEL_SDK_DISABLED", "true"}})->host.empty());
}

}  // namespace
}  // namespace ddp::launcher
