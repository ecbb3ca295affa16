#include "launcher/report/run_summary.h"

#include "base/text.h"

namespace ddp::launcher {
namespace {

constexpr std::chrono::minutes kLongRun{1};

}  // namespace

std::string text_with_summary(const ExitReport& report, const JobEnd& end, const RunSummary& summary,
                              bool always) {
  const bool success = report.exit_code == 0;
  if (!always && summary.duration < kLongRun && !(success && end.restarts > 0)) return report.text;
  const std::string output = ", " + format_text("goodput %.1f %%, ", 100 * summary.goodput) +
                             format_bytes(summary.output_bytes) + " of output\n";
  if (success) {
    return "ddplaunch: " + job_line(end) + "\nddplaunch: succeeded after " +
           format_elapsed(summary.duration) +
           (end.restarts > 0 ? ", " + counted(end.restarts, "restart") : "") + output;
  }
  const std::size_t last_line = report.text.rfind('\n', report.text.size() - 2) + 1;
  return report.text.substr(0, last_line) + "  ran for " + format_elapsed(summary.duration) + output +
         report.text.substr(last_line);
}

}  // namespace ddp::launcher
