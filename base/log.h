#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace spdlog {
class logger;
}

namespace ddp::log {

/// info: one line per change of state; debug: one per message; trace: one per frame.
enum class Level { kTrace, kDebug, kInfo, kWarning, kError, kOff };

/// Takes whole lines including the line end, one at a time. Must not log.
using Write = std::function<void(std::string_view line)>;
/// Sends the lines of all loggers to `write`; empty (and before the first call): nowhere. After the return
/// the previous function is not called again.
void write_to(Write write);

/// Applies to all loggers, present and future. Default: kWarning.
void set_level(Level level);
/// Accepts "trace", "debug", "info", "warning", "error", "off". Any other name returns false and changes
/// nothing.
bool set_level(std::string_view name);
/// Sets the origin shown in every following line, such as "job 7f3a gpu02 attempt 1"; empty: none.
void set_context(std::string context);

/// The logger of one module: "2026-11-21 12:34:56.789 warning [remote] context: text". Cheap to copy; any
/// thread. Parts of a line are text, characters and numbers, never a Secret.
class Logger {
 public:
  /// All loggers with the same name share one state.
  explicit Logger(const std::string& module);

  bool enabled(Level level) const;

  template <class... Parts>
  void trace(const Parts&... parts) const {
    write(Level::kTrace, parts...);
  }
  template <class... Parts>
  void debug(const Parts&... parts) const {
    write(Level::kDebug, parts...);
  }
  template <class... Parts>
  void info(const Parts&... parts) const {
    write(Level::kInfo, parts...);
  }
  template <class... Parts>
  void warning(const Parts&... parts) const {
    write(Level::kWarning, parts...);
  }
  template <class... Parts>
  void error(const Parts&... parts) const {
    write(Level::kError, parts...);
  }

 private:
  static void append(std::string& line, std::string_view text) { line += text; }
  static void append(std::string& line, const char* text) { line += text; }
  static void append(std::string& line, char character) { line += character; }
  static void append(std::string& line, bool value) { line += value ? "true" : "false"; }
  template <class Number>
  requires std::is_arithmetic_v<Number>
  static void append(std::string& line, Number value) { line += std::to_string(value); }

  /// Builds the line only if the level is enabled.
  template <class... Parts>
  void write(Level level, const Parts&... parts) const {
    if (!enabled(level)) return;
    std::string line;
    (append(line, parts), ...);
    emit(level, line);
  }
  void emit(Level level, std::string_view line) const;

  std::shared_ptr<spdlog::logger> logger_;
};

/// During its lifetime, lines of all levels are captured instead, as "warning [remote] context: text". For
/// tests; only one at a time.
class Capture {
 public:
  Capture();
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::vector<std::string> lines() const;

 private:
  Level before_;
};

}  // namespace ddp::log
