#include "base/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace ddp::log {
namespace {

constexpr char kPattern[] = "%Y-%m-%d %H:%M:%S.%e %l [%n] %v";

/// Writes to the function set by write_to(), or into the memory of a Capture.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void write_to(Write write) {
    const std::lock_guard lock(mutex_);
    write_ = std::move(write);
  }
  void capture(bool on) {
    const std::lock_guard lock(mutex_);
    captured_ = on ? std::optional<std::vector<std::string>>(std::in_place) : std::nullopt;
  }
  std::vector<std::string> captured() {
    const std::lock_guard lock(mutex_);
    return captured_.value_or(std::vector<std::string>());
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (!captured_) {
      if (!write_) return;
      spdlog::memory_buf_t text;
      formatter_->format(message, text);
      return write_({text.data(), text.size()});
    }
    const auto level = spdlog::level::to_string_view(message.level);
    std::string line(level.data(), level.size());
    line += " [";
    line.append(message.logger_name.data(), message.logger_name.size());
    line += "] ";
    line.append(message.payload.data(), message.payload.size());
    captured_->push_back(std::move(line));
  }
  void flush_() override {}

 private:
  Write write_;
  std::optional<std::vector<std::string>> captured_;
};

/// State shared by all loggers. Never destroyed, so that lines can be written until the process ends.
struct LogState {
  LogState() { sink->set_pattern(kPattern); }
  std::mutex mutex;
  std::shared_ptr<LogSink> sink = std::make_shared<LogSink>();
  std::map<std::string, std::shared_ptr<spdlog::logger>> loggers;
  Level level = Level::kWarning;
  std::string context;
};

LogState& state() {
  static LogState* const state = new LogState;
  return *state;
}

spdlog::level::level_enum as_spdlog(Level level) {
  switch (level) {
    case Level::kTrace:
      return spdlog::level::trace;
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
    case Level::kOff:
      break;
  }
  return spdlog::level::off;
}

std::shared_ptr<spdlog::logger> logger_of(const std::string& module) {
  LogState& all = state();
  const std::lock_guard lock(all.mutex);
  auto& logger = all.loggers[module];
  if (!logger) {
    logger = std::make_shared<spdlog::logger>(module, all.sink);
    logger->set_level(as_spdlog(all.level));
  }
  return logger;
}

}  // namespace

void write_to(Write write) {
  state().sink->write_to(std::move(write));
}

void set_level(Level level) {
  LogState& all = state();
  const std::lock_guard lock(all.mutex);
  all.level = level;
  for (auto& [name, logger] : all.loggers)
    logger->set_level(as_spdlog(level));
}

bool set_level(std::string_view name) {
  constexpr std::pair<std::string_view, Level> kNames[] = {
      {"trace", Level::kTrace},     {"debug", Level::kDebug}, {"info", Level::kInfo},
      {"warning", Level::kWarning}, {"error", Level::kError}, {"off", Level::kOff},
  };
  for (const auto& [known, level] : kNames) {
    if (known != name) continue;
    set_level(level);
    return true;
  }
  return false;
}

void set_context(std::string context) {
  LogState& all = state();
  const std::lock_guard lock(all.mutex);
  all.context = std::move(context);
}

Logger::Logger(const std::string& module) : logger_(logger_of(module)) {}

bool Logger::enabled(Level level) const {
  return logger_->should_log(as_spdlog(level));
}

void Logger::emit(Level level, std::string_view line) const {
  std::string text;
  {
    LogState& all = state();
    const std::lock_guard lock(all.mutex);
    if (!all.context.empty()) text = all.context + ": ";
  }
  text += line;
  // Pass the text as a message, not as a format, since it may contain braces.
  logger_->log(as_spdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

Capture::Capture() : before_(state().level) {
  state().sink->capture(true);
  set_level(Level::kTrace);
}

Capture::~Capture() {
  set_level(before_);
  state().sink->capture(false);
}

std::vector<std::string> Capture::lines() const {
  return state().sink->captured();
}

}  // namespace ddp::log
