#include "apps/train/training/record_head.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>

namespace ddp::train {

namespace {

constexpr const char* kSchema = "ddp-train-record/1";

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char date[32], text[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(ms));
  return text;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') json += '\\';
    json += letter < ' ' || letter > '~' ? '?' : letter;
  }
  return json + '"';
}

std::string record_head(std::string_view kind, int rank, int world_size) {
  static const std::string host = json_string(host_name());
  return "{\"schema\":\"" + std::string(kSchema) + "\",\"kind\":" + json_string(kind) + ",\"time\":\"" +
         utc_now() + "\",\"host\":" + host + ",\"rank\":" + std::to_string(rank) +
         ",\"world_size\":" + std::to_string(world_size);
}

}  // namespace ddp::train
