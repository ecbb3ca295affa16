#include "apps/train/training/run_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/program.h"
#include "base/text.h"

namespace ddp::train {

namespace {

constexpr int kNotPrinted = 116;

Result<>& outcome() {
  static Result<> of_all;
  return of_all;
}

/// Covers print_out() and other output (--help).
Result<> all_printed() {
  if (!outcome()) return outcome();
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return system_error(errno != 0 ? errno : EIO, "write standard output");
}

constexpr const char* kSchema = "ddp-train-record/1";

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &parts);
  return format_text("%s.%03dZ", date, static_cast<int>(ms));
}

}  // namespace

void print_out(const char* format, ...) {
  if (!outcome()) return;
  errno = 0;
  va_list arguments;
  va_start(arguments, format);
  const bool written = std::vprintf(format, arguments) >= 0 && std::fflush(stdout) == 0;
  va_end(arguments);
  if (written) return;
  outcome() = system_error(errno, "write standard output");
  std::fprintf(stderr, "train: %s; later output is dropped\n", outcome().error().text.c_str());
}

int exit_code_after_printing(int code) {
  if (code != 0) return code;
  const auto printed = all_printed();
  if (printed) return code;
  std::fprintf(stderr, "train: standard output is incomplete: %s\n", printed.error().text.c_str());
  return kNotPrinted;
}

Result<> LineFile::open(const std::string& option, const std::string& path) {
  name_ = option + ' ' + path;
  // Opening a pipe without a reader must not block, but writing to a slow reader may.
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  file_ = UniqueFd(::open(path.c_str(), flags | O_NONBLOCK, 0666));
  if (!file_ || ::fcntl(file_.get(), F_SETFL, O_APPEND) != 0) return system_error(errno, name_);
  return {};
}

void LineFile::append(const std::string& line) {
  if (!file_) return;
  const off_t before = ::lseek(file_.get(), 0, SEEK_END);  // -1: a pipe
  // One write per line, so that a reader of the growing file sees whole lines.
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(file_.get(), line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) break;
    done += static_cast<std::size_t>(written);
  }
  if (done == line.size()) return;
  std::fprintf(stderr, "train: %s; training continues without this file\n",
               system_error(errno, name_).text.c_str());
  // A half line would pass for a broken file. Truncating fails only if the file is no longer under our
  // control.
  if (done > 0 && before >= 0) (void)!::ftruncate(file_.get(), before);
  file_ = UniqueFd();
}

nlohmann::ordered_json begin_record(std::string_view kind, int rank, int world_size) {
  static const std::string host = host_name();
  return {{"schema", kSchema}, {"kind", kind}, {"time", utc_now()},
          {"host", host},      {"rank", rank}, {"world_size", world_size}};
}

std::string record_line(const nlohmann::ordered_json& record) {
  return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

double rounded(double value, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(value * scale) / scale;
}

}  // namespace ddp::train
