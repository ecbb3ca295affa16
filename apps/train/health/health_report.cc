// Output of the verdict: a table and lines for people, a record for programs.
#include <cinttypes>
#include <cstdarg>
#include <cstdio>

#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/training/run_output.h"
#include "base/build_identity.h"

namespace ddp::train {

namespace {

[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...) {
  char text[768];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string whose(const HealthReport& report, int rank) {
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " on " + figures.host + ", " + figures.device;
}

std::string rank_json(const HealthFigures& f, std::size_t rank) {
  std::string text = "{\"rank\":" + std::to_string(rank) + ",\"host\":" + json_string(f.host) +
                     ",\"device\":" + json_string(f.device) + ",\"trouble\":" + json_string(f.trouble);
  text += format_text(",\"threads\":%" PRIu64 ",\"products\":%" PRIu64 ",\"wrong_products\":%" PRIu64
                      ",\"other_products\":%" PRIu64 ",\"gflops\":%.3f,\"memory_bytes\":%" PRIu64
                      ",\"wrong_words\":%" PRIu64 ",\"wrong_sums\":%" PRIu64 ",\"throttled\":%" PRIu64,
                      f.threads, f.products, f.wrong_products, f.other_products, f.gflops, f.memory,
                      f.wrong_words, f.wrong_sums, f.throttled);
  if (f.gpu) {
    text += format_text(",\"ecc_corrected\":%" PRIu64 ",\"ecc_uncorrected\":%" PRIu64
                        ",\"throttle_reasons\":%" PRIu64 ",\"temperature\":%" PRIu64 ",\"clock_mhz\":%" PRIu64
                        ",\"most_clock_mhz\":%" PRIu64 ",\"xids\":%" PRIu64,
                        f.ecc_corrected, f.ecc_uncorrected, f.throttle_reasons, f.temperature, f.clock,
                        f.most_clock, f.xids);
  }
  return text + "}";
}

std::string pair_json(const HealthPair& pair) {
  return format_text("{\"ranks\":[%d,%d],\"same_node\":%s,\"failed\":%s,\"wrong\":%" PRIu64
                     ",\"latency_us\":%.3f,\"bandwidth_gbps\":%.4f}",
                     pair.result.first, pair.result.second, pair.result.same_node ? "true" : "false",
                     pair.failed ? "true" : "false", pair.wrong, pair.result.latency_us,
                     pair.result.bandwidth);
}

std::string finding_json(const HealthReport& report, const HealthDiagnostic& diagnostic) {
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(diagnostic.rank)];
  return std::string("{\"level\":\"") + (diagnostic.error ? "error" : "warning") +
         "\",\"rank\":" + std::to_string(diagnostic.rank) + ",\"host\":" + json_string(figures.host) +
         ",\"device\":" + json_string(figures.device) + ",\"item\":" + json_string(diagnostic.item) +
         ",\"text\":" + json_string(diagnostic.text) + "}";
}

/// Returns "[a,b]", with the text that `one` makes of each element.
template <class List, class One>
std::string list_json(const List& list, const One& one) {
  std::string text = "[";
  for (std::size_t i = 0; i < list.size(); ++i)
    text += (i == 0 ? "" : ",") + one(list[i], i);
  return text + "]";
}

}  // namespace

std::string health_text(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  std::string text = "# train " + std::string(version()) + " health, " + std::to_string(report.ranks.size()) +
                     (report.ranks.size() == 1 ? " rank" : " ranks");
  if (report.nodes > 0) text += format_text(" on %d node%s", report.nodes, report.nodes == 1 ? "" : "s");
  text += ", " + report.backend + "\n#\n#  rank  products  GFLOP/s  memory (MiB)  result    host, device\n";
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const HealthFigures& f = report.ranks[i];
    text += format_text("%7zu %9" PRIu64 " %8.1f %13" PRIu64 "  %-8s  %s, %s", i, f.products, f.gflops,
                        f.memory >> 20, has_failed(diagnostics, static_cast<int>(i)) ? "FAILED" : "ok",
                        f.host.c_str(), f.device.c_str());
    if (f.gpu && f.most_clock > 0) {
      text += format_text(", %" PRIu64 " of %" PRIu64 " MHz, %" PRIu64 " degrees", f.clock, f.most_clock,
                          f.temperature);
    }
    text += "\n";
  }
  for (const HealthDiagnostic& diagnostic : diagnostics) {
    if (!diagnostic.error)
      text += "# warning: " + whose(report, diagnostic.rank) + ": " + diagnostic.text + "\n";
  }
  return text;
}

std::vector<std::string> failure_lines(const HealthReport& report,
                                       const std::vector<HealthDiagnostic>& diagnostics) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < static_cast<int>(report.ranks.size()); ++rank) {
    std::string text;
    for (const HealthDiagnostic& diagnostic : diagnostics) {
      if (diagnostic.error && diagnostic.rank == rank) text += (text.empty() ? "" : "; ") + diagnostic.text;
    }
    if (!text.empty()) lines.push_back(whose(report, rank) + ": " + text);
  }
  return lines;
}

std::string health_json(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  std::string text = record_head("health", 0, static_cast<int>(report.ranks.size()));
  text += ",\"version\":" + json_string(version()) + ",\"nodes\":" + std::to_string(report.nodes) +
          ",\"backend\":" + json_string(report.backend) + ",\"ranks\":" + list_json(report.ranks, rank_json);
  text += ",\"pairs\":" +
          list_json(report.pairs, [](const HealthPair& pair, std::size_t) { return pair_json(pair); });
  text +=
      ",\"findings\":" + list_json(diagnostics, [&report](const HealthDiagnostic& diagnostic, std::size_t) {
        return finding_json(report, diagnostic);
      });
  const bool passed = failure_lines(report, diagnostics).empty();
  return text + ",\"passed\":" + (passed ? "true" : "false") + "}\n";
}

}  // namespace ddp::train
