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

/// info: one line for each change of state. debug: one for each message. trace: one for each frame.
enum class Level { kTrace, kDebug, kInfo, kWarning, kError, kOff };

/// Takes whole lines with their line end, one at a time; must not log itself.
using Write = std::function<void(std::string_view line)>;
/// Where the lines of all loggers go from now on; empty: nowhere, as before the first call. When it returns,
/// the one before is not called any more.
void write_to(Write write);

/// For all loggers, those to come too. Until the first call: kWarning.
void set_level(Level level);
/// "trace", "debug", "info", "warning", "error", "off"; anything else leaves the level and gives false.
bool set_level(std::string_view name);
/// What every following line says about where it comes from, such as "job 7f3a gpu02 attempt 1". Empty:
/// nothing.
void set_context(std::string context);

/// A module's voice: "2026-11-21 12:34:56.789 warning [remote] context: text". Cheap to copy; any thread. The
/// parts of a line are text, characters and numbers; a Secret is none of them.
class Logger {
 public:
  /// The logger of this name, the same for everybody who asks.
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

  /// The line is put together only when somebody will read it.
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

/// While one lives, lines go into it instead, all levels, as "warning [remote] context: text". For tests; one
/// at a time.
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
