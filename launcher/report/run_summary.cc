#include "launcher/report/run_summary.h"

#include "base/format_text.h"

namespace ddp::launcher {
namespace {

constexpr std::chrono::minutes kLongRun{1};

/// "512 bytes", "1.3 GiB".
std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return counted(bytes, "byte");
  auto size = static_cast<double>(bytes) / 1024;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  return format_text("%.1f %s", size, unit);
}

}  // namespace

std::string elapsed_text(std::chrono::nanoseconds time) {
  using std::chrono::milliseconds;
  if (time < std::chrono::seconds(1))
    return std::to_string(std::chrono::duration_cast<milliseconds>(time).count()) + " ms";
  if (time < std::chrono::minutes(2))
    return format_text("%.1f s", std::chrono::duration<double>(time).count());
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(time).count();
  if (minutes < 120) return std::to_string(minutes) + " min";
  return std::to_string(minutes / 60) + " h " + std::to_string(minutes % 60) + " min";
}

std::string text_with_summary(const ExitReport& report, const JobEnd& end, const RunSummary& summary,
                              bool always) {
  const bool success = report.exit_code == 0;
  if (!always && summary.duration < kLongRun && !(success && summary.restarts > 0)) return report.text;
  const std::string output = ", " + bytes_text(summary.output_bytes) + " of output\n";
  if (success) {
    return "ddplaunch: " + job_line(end) + "\nddplaunch: succeeded after " + elapsed_text(summary.duration) +
           (summary.restarts > 0 ? ", " + counted(summary.restarts, "restart") : "") + output;
  }
  const std::size_t last_line = report.text.rfind('\n', report.text.size() - 2) + 1;
  return report.text.substr(0, last_line) + "  ran for " + elapsed_text(summary.duration) + output +
         report.text.substr(last_line);
}

}  // namespace ddp::launcher
