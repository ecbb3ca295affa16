#include "launcher/telemetry/otlp.h"

#include <map>
#include <string>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

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
